"""Where the command `crcl` and `python -m crcl` begin: before anything is loaded."""

import sys


def main() -> None:
    """Load and run the command line; Ctrl-C during loading ends quietly."""
    try:
        from crcl import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
