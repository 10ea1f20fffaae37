"""Base class of the sections of a config, and the types of their values."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST = 2**31 - 1
"""The largest number that a setting can count."""
Count = Annotated[int, Field(ge=1, le=MOST)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
ShareAboveZero = Annotated[float, Field(gt=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
# TOML and `key=value` have no null: an empty text unsets an optional value.
OptionalText = Annotated[str | None, BeforeValidator(lambda value: None if value == "" else value)]
FILE = "names a file"
"""Marks settings of type `OptionalFile`, which are compared by the content of the file, not by its name."""
OptionalFile = Annotated[OptionalText, FILE]


class Section(BaseModel):
    """Base class of config sections: frozen, no unknown keys, no silent conversion ("3" is not 3).

    The docstring of a field is its description.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
