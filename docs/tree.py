"""Print the tree of the package with the first sentence of each module, as docs/architecture.md shows it.

python docs/tree.py            # print it
python docs/tree.py --write    # put it into the page
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/crcl"
PAGE = ROOT / "docs/architecture.md"
BLOCK = re.compile(r"(?<=```text\n)src/crcl/\n.*?(?=```)", re.DOTALL)
COLUMN = 28  # where descriptions begin


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring, in one line and without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return re.split(r"\.(?: (?=[A-Z])|$)", re.sub(r"\s+", " ", text.split("\n\n")[0]))[0]


def lines(folder: Path, depth: int = 1) -> list[str]:
    """A line for each module and each folder below this one, modules first."""
    found = []
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.suffix == ".py" and path.name != "__init__.py":
            found.append(line(path.name, depth, sentence(path)))
        elif path.is_dir() and any(path.glob("*.py")):
            found += [line(f"{path.name}/", depth, sentence(path / "__init__.py")), *lines(path, depth + 1)]
        elif path.is_dir() and path.name != "__pycache__":
            kinds = sorted({file.suffix for file in path.iterdir() if file.suffix})
            found.append(line(f"{path.name}/", depth, f"{', '.join(kinds)} files"))
    return found


def line(name: str, depth: int, says: str) -> str:
    return f"{'  ' * depth}{name}".ljust(COLUMN - 1) + f" {says}".rstrip()


def tree() -> str:
    """The whole tree."""
    return "\n".join(["src/crcl/", *(each.rstrip() for each in lines(PACKAGE))]) + "\n"


def main() -> None:
    if "--write" in sys.argv:
        PAGE.write_text(BLOCK.sub(lambda _: tree(), PAGE.read_text("utf-8")), "utf-8")
    else:
        print(tree(), end="")


if __name__ == "__main__":
    main()
