"""Show the section `Example:` of a docstring as an example: mkdocstrings knows it by its plural only."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Loaded by mkdocstrings for every object of the package."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
