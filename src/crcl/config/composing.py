"""Composing the config model from the sections of `config.schema` and those of all methods and matchers."""

from functools import lru_cache
from typing import Any, Literal, cast

from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from crcl.config.schema import Config, DataConfig, MatcherModel, MatcherName, NoiseConfig, TrainConfig
from crcl.matchers import MATCHERS, MatcherRecord
from crcl.methods import METHODS, MethodRecord
from crcl.settings import FILE, Section

_METHOD = "method"
_ABOUT_METHOD = "How the matcher is trained: crcl, another robust method or one plain loss for comparison."


def model() -> type[Config]:
    """The config model for the methods and matchers that are registered now."""
    return _model(tuple(METHODS.items()), tuple(MATCHERS.items()))


def sections() -> dict[str, type[Section]]:
    """Every section by name, in the order of a config file."""
    return _sections(model())


def all_keys() -> dict[str, FieldInfo]:
    """Every setting by its full name, e.g. `loss.tau`."""
    return _keys(model())


def file_keys() -> list[str]:
    """Keys of settings that name a file, which are compared by the content of the file."""
    return [key for key, field in all_keys().items() if FILE in field.metadata]


@lru_cache
def _model(
    methods: tuple[tuple[str, MethodRecord], ...], matchers: tuple[tuple[str, MatcherRecord], ...]
) -> type[Config]:
    own: dict[str, type[Section]] = {}
    for _, record in methods:
        for name, section in record.sections.items():
            if own.setdefault(name, section) is not section:
                raise ValueError(
                    f"method {record.name} declares section '{name}' with another class than an earlier method"
                )
    matcher = _matcher_section([record for _, record in matchers], _choice(matchers))
    parts: dict[str, type[Section]] = {
        "data": DataConfig,
        "noise": NoiseConfig,
        "matcher": matcher,
        **own,
        "train": TrainConfig,
    }
    fields: dict[str, Any] = {name: (part, part()) for name, part in parts.items()}
    method = Field(methods[0][0], description=_ABOUT_METHOD)
    return create_model("Config", __base__=Config, method=(_choice(methods), method), **fields)


def _matcher_section(records: list[MatcherRecord], choice: Any) -> type[Section]:
    """A subclass of every matcher's settings, so that each matcher finds its own in it."""
    kinds = list(dict.fromkeys(record.settings for record in records))
    narrow = [kind for kind in kinds if not any(kind is not other and issubclass(other, kind) for other in kinds)]
    # fields come in the order of the classes from last to first
    bases: tuple[type[Section], ...] = (MatcherModel, *reversed(narrow), MatcherName)
    name = Field(records[0].name, description=MatcherName.model_fields["name"].description)
    return create_model(
        "MatcherConfig",
        __base__=bases,
        __doc__="The network that turns images and texts into similarities.",
        name=(choice, name),
    )


def _choice(table: tuple[tuple[str, Any], ...]) -> Any:
    """The Literal type of the names in a table."""
    return Literal[tuple(name for name, _ in table)]


@lru_cache
def _sections(whole: type[Config]) -> dict[str, type[Section]]:
    return {
        name: cast(type[Section], field.annotation) for name, field in whole.model_fields.items() if name != _METHOD
    }


@lru_cache
def _keys(whole: type[Config]) -> dict[str, FieldInfo]:
    own = {
        f"{name}.{leaf}": field for name, part in _sections(whole).items() for leaf, field in part.model_fields.items()
    }
    return {_METHOD: whole.model_fields[_METHOD], **own}
