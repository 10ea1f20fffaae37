"""Where the command `crcl` and `python -m crcl` begin: before anything is loaded."""

import faulthandler
import sys
from contextlib import suppress


def main() -> None:
    """Load and run the command line; Ctrl-C during loading ends quietly, and a crash says where it happened."""
    with suppress(AttributeError, ValueError, OSError):  # without stderr there is nowhere to say it
        faulthandler.enable()
    try:
        from crcl import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
