"""What the pages of the documentation hold: commands and snippets, to be run as they stand there."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    """A page with what it includes put in its place."""
    text = (ROOT / name).read_text("utf-8")
    return re.sub(r'--8<-- "([^"]+)"', lambda found: (ROOT / found[1]).read_text("utf-8"), text)


def section(text: str, title: str) -> str:
    """What stands below a title, up to the next one of its rank."""
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def commands(text: str, program: str = "crcl") -> list[list[str]]:
    """The words of every command in the code blocks, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [
        shlex.split(line.split(" # ")[0]) for line in map(str.strip, lines) if re.match(rf"{program} (?!\.\.\.)", line)
    ]


def snippets(text: str) -> list[str]:
    """The blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
