"""Descriptions of config keys, and messages about wrong keys and values."""

import json
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from crcl.config import composing
from crcl.errors import InputError, did_you_mean, nearest


class Key(NamedTuple):
    """One row of a listing of keys; `default` is written as after `=`."""

    key: str
    type: str
    default: str
    description: str


# Symbols of the paper and usual names, which users may type instead of a key.
OTHER_NAMES = {
    "beta": ["ledger.momentum"],
    "epsilon": ["ledger.threshold"],
    "e_f": ["ledger.freeze_epochs"],
    "lambda": ["loss.scale"],
    "temperature": ["loss.tau"],
    "epochs": ["train.pieces"],
}
MESSAGES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "too_short": "must have at least one entry",
}


def describe_keys() -> list[Key]:
    """Every key with its type, default and description."""
    rows = []
    for key, field in composing.all_keys().items():
        default = field.default
        text = default if isinstance(default, str) else "" if default is None else json.dumps(default)
        rows.append(Key(key, type_name(field.annotation), text, field.description or ""))
    return rows


def nearest_key(key: str) -> str:
    """A suggestion for an unknown key: the same last part elsewhere, else the nearest in its section, else anywhere."""
    keys, sections = composing.all_keys(), composing.sections()
    section, _, leaf = key.rpartition(".")
    if same := [known for known in keys if leaf in (known, known.rpartition(".")[2])] or OTHER_NAMES.get(leaf):
        return f" (did you mean {' or '.join(repr(known) for known in same)}?)"
    if section in sections and (near := nearest(leaf, sections[section].model_fields)):
        return f" (did you mean '{section}.{near}'?)"
    leaves = {known.rpartition(".")[2]: known for known in keys}
    if not section and (near := nearest(leaf, [*leaves, *sections])):
        return f" (did you mean '{leaves.get(near, near)}'?)"
    return did_you_mean(key, keys)


def wrong_value(details: Any, values: Mapping[str, tuple[Any, str]]) -> InputError:
    """The error for one pydantic error, such as `file: train.lr: must be greater than 0, got -1`."""
    key = ".".join(part for part in details["loc"] if isinstance(part, str))
    source = values[key][1]
    where = f"{source}: {key}" if source else key
    place = "".join(f"[{part}]" for part in details["loc"] if isinstance(part, int))
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "value_error":
        return InputError(str(context["error"]), where=f"{where}{place}")
    annotation: Any = composing.all_keys()[key].annotation
    if place:
        annotation = get_args(annotation)[0]
    choices = choices_of(annotation)
    if choices:
        near = did_you_mean(given, choices) if isinstance(given, str) else ""
        return InputError(f"must be one of {', '.join(choices)}, got {show(given)}{near}", where=f"{where}{place}")
    if kind in MESSAGES:
        bounds = {name: f"{bound:g}" if isinstance(bound, float) else bound for name, bound in context.items()}
        return InputError(f"{MESSAGES[kind].format(**bounds)}, got {show(given)}", where=f"{where}{place}")
    expected = type_name(annotation)
    article = "" if expected in ("text", "true or false") else "a "
    return InputError(f"must be {article}{expected}, got {show(given)}", where=f"{where}{place}")


def choices_of(annotation: Any) -> tuple[str, ...]:
    """The allowed values of a setting with choices; empty for other settings."""
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def type_name(annotation: Any) -> str:
    """The type of a setting in words: text, number, whole number, ... or its choices."""
    if choices := choices_of(annotation):
        return " | ".join(choices)
    if get_origin(annotation) is Annotated:
        return type_name(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        listed = get_args(annotation)[0]
        return f"list of {' | '.join(choices_of(listed)) or f'{type_name(listed)}s'}"
    if get_origin(annotation) in (Union, types.UnionType):
        return type_name(next(part for part in get_args(annotation) if part is not type(None)))
    names: dict[Any, str] = {str: "text", bool: "true or false", int: "whole number", float: "number"}
    return names[annotation]


def show(value: Any) -> str:
    """A value as written in TOML, shortened."""
    text = str(value).lower() if isinstance(value, bool) else "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
