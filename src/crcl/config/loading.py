"""Reading a config: TOML presets and files, `key=value` settings, stored runs.

All errors are reported at once, one line per key, with the nearest valid key.
"""

import json
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError

from crcl.config.schema import (
    DIVIDING,
    MATCHER_NAMES,
    MATCHERS_OF,
    Config,
    DataConfig,
    DeclConfig,
    DivisionConfig,
    GscConfig,
    L2rmConfig,
    LedgerConfig,
    LossConfig,
    MatcherConfig,
    MscnConfig,
    NoiseConfig,
    Section,
    TrainConfig,
)
from crcl.errors import InputError, did_you_mean


class Key(NamedTuple):
    """One key for a listing; `default` is as it would be written after `=`."""

    key: str
    type: str
    default: str
    description: str


SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "noise": NoiseConfig,
    "matcher": MatcherConfig,
    "loss": LossConfig,
    "ledger": LedgerConfig,
    "decl": DeclConfig,
    "division": DivisionConfig,
    "mscn": MscnConfig,
    "gsc": GscConfig,
    "l2rm": L2rmConfig,
    "train": TrainConfig,
}
KEYS = {
    "method": Config.model_fields["method"],
    **{f"{section}.{leaf}": field for section, model in SECTIONS.items() for leaf, field in model.model_fields.items()},
}
# The paper's symbols and the field's habits, for those who type them.
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


def load(
    *,
    preset: str | None = None,
    file: str | Path | None = None,
    settings: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
    over: Config | None = None,
) -> Config:
    """Defaults or `over` < `preset` < TOML `file` < `base` (nested or dotted keys) < `key=value` settings.

    All errors are reported at once.
    """
    errors: list[str] = []
    values: dict[str, tuple[Any, str]] = {}  # dotted key: value, and the file to name in messages
    if over is not None:
        values |= _named(to_dict(over), source="", errors=errors)
    if preset is not None:
        values |= _named(_read_preset(preset, errors), source=f"preset {preset}", errors=errors)
    if file is not None:
        values |= _named(read_toml(Path(file), errors), source=str(file), errors=errors)
    if base is not None:
        values |= _named(base, source="", errors=errors)
    for setting in [settings] if isinstance(settings, str) else settings:
        values |= _named(_read_setting(setting, errors), source="", errors=errors)
    return _build(values, errors)


def given(settings: Sequence[str]) -> dict[str, Any]:
    """The dotted keys that `key=value` settings name, right or wrong, and their values."""
    return {key: value for setting in settings for key, value in _flatten(_read_setting(setting, [])).items()}


def keys_of(settings: Sequence[str]) -> list[str]:
    """The dotted keys that `key=value` settings name, right or wrong."""
    return list(given(settings))


def differences(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configs differ, with both values."""
    left, right = _flatten(to_dict(one)), _flatten(to_dict(other))
    return {key: (left[key], right[key]) for key in left if left[key] != right[key]}


def from_dict(values: Any, *, source: str = "") -> Config:
    """The config that `to_dict` wrote; errors name `source`, the file it was read from."""
    errors: list[str] = []
    if not isinstance(values, Mapping):
        raise InputError(f"{source + ': ' if source else ''}must be an object of sections, got {_show(values)}")
    return _build(_named(values, source=source, errors=errors), errors)


def to_dict(config: Config) -> dict[str, Any]:
    """Plain JSON values, every key written out."""
    return config.model_dump(mode="json")


def presets() -> list[str]:
    """Names of the shipped presets, sorted."""
    folder = resources.files("crcl") / "config" / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def describe_keys() -> list[Key]:
    """Every key with its type, default and meaning, for a listing."""
    rows = []
    for key, field in KEYS.items():
        default = field.default
        text = default if isinstance(default, str) else "" if default is None else json.dumps(default)
        rows.append(Key(key, _type_name(field.annotation), text, field.description or ""))
    return rows


def _read_preset(name: str, errors: list[str]) -> dict[str, Any]:
    if name not in presets():
        errors.append(f"unknown preset '{name}'{did_you_mean(name, presets())}; there are {', '.join(presets())}")
        return {}
    return tomllib.loads((resources.files("crcl") / "config" / "presets" / f"{name}.toml").read_text(encoding="utf-8"))


def read_toml(path: Path, errors: list[str]) -> dict[str, Any]:
    """The content of a file; what is wrong with it goes to the errors."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        errors.append(f"{path}: no such file")
    except OSError as error:
        errors.append(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        errors.append(f"{path}: not UTF-8 at byte {error.start}")
    except RecursionError:
        errors.append(f"{path}: nested too deeply")
    except tomllib.TOMLDecodeError as error:  # its message ends with line and column
        errors.append(f"{path}: not valid TOML: {error}")
    return {}


def _read_setting(setting: str, errors: list[str]) -> dict[str, Any]:
    """`key=value` with a TOML value, or a bare text where the key takes text or TOML does not know it."""
    key, equals, text = (part.strip() for part in setting.partition("="))
    if not (key and equals):
        errors.append(f"{setting!r}: must be key=value, as in loss.tau=0.03")
        return {}
    try:
        parsed = tomllib.loads(f"value = {text}")
        value = parsed["value"] if len(parsed) == 1 else text
    except tomllib.TOMLDecodeError:
        # TOML has no `.5`; shells are full of it
        value = float(text) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE) else text
    takes_text = key in KEYS and (_type_name(KEYS[key].annotation) == "text" or _choices(KEYS[key].annotation))
    return {key: text if takes_text and not isinstance(value, str) else value}


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys; an empty table stays as a value, so that a misspelt empty section is noticed."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{key}.")
        else:
            flat[key] = value
    return flat


def _named(values: Mapping[str, Any], *, source: str, errors: list[str]) -> dict[str, tuple[Any, str]]:
    """The values of known keys; what is unknown goes to the errors."""
    known = {}
    for key, value in _flatten(values).items():
        where = f"{source}: " if source else ""
        if key in KEYS:
            known[key] = (value, source)
        elif key not in SECTIONS:
            errors.append(f"{where}{key}: unknown key{_nearest(key)}")
        elif value != {}:
            leaves = ", ".join(f"{key}.{leaf}" for leaf in SECTIONS[key].model_fields)
            errors.append(f"{where}{key}: is a section, not a value, got {_show(value)}; its keys are {leaves}")
    return known


def _nearest(key: str) -> str:
    """The right key for a wrong one: the same last name elsewhere, else the nearest in its section, else anywhere."""
    section, _, leaf = key.rpartition(".")
    if same := [known for known in KEYS if leaf in (known, known.rpartition(".")[2])] or OTHER_NAMES.get(leaf):
        return f" (did you mean {' or '.join(repr(known) for known in same)}?)"
    if section in SECTIONS and (near := did_you_mean(leaf, SECTIONS[section].model_fields)):
        return near.replace("'", f"'{section}.", 1)
    leaves = {known.rpartition(".")[2]: known for known in KEYS}
    if not section and (near := did_you_mean(leaf, [*leaves, *SECTIONS])):
        word = near.split("'")[1]
        return near.replace(word, leaves.get(word, word))
    return did_you_mean(key, KEYS)


def _build(values: Mapping[str, tuple[Any, str]], errors: list[str]) -> Config:
    """The config of known dotted keys, or one InputError with `errors` and every wrong value."""
    nested: dict[str, Any] = {}
    for key, (value, _) in values.items():
        section, _, leaf = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[leaf] = value
    wrong: list[str] = []
    try:
        config = Config.model_validate(nested)
    except ValidationError as error:
        # a list whose entries are all wrong is "too short" as well: say it of empty ones only
        found = [details for details in error.errors() if details["type"] != "too_short" or not details["input"]]
        wrong = [_wrong_value(details, values) for details in found]
    else:
        wrong = list(_contradictions(config))
    if errors or wrong:
        raise InputError("\n".join([*errors, *wrong]))
    return config


def _contradictions(config: Config) -> Iterator[str]:
    """What is right by itself, but not together."""
    pieces, last = list(config.train.pieces), config.train.pieces[-1]
    if config.method == "crcl" and config.ledger.freeze_epochs >= max(pieces):
        yield (
            f"ledger.freeze_epochs: {config.ledger.freeze_epochs} epochs of each piece are frozen, and no piece of "
            f"train.pieces {pieces} is longer: no belief would ever change"
        )
    if config.method in DIVIDING and config.division.warmup >= last:
        yield (
            f"division.warmup: the first {config.division.warmup} epochs divide nothing, and train.pieces "
            f"{pieces} ends with {last}: no pair would ever be called noisy"
        )
    if config.ledger.probability == "eval" and config.ledger.correction != "paper":
        yield (
            f"ledger.probability=eval goes with ledger.correction=paper only: {config.ledger.correction} takes the "
            "probability of the current step"
        )
    if config.method == "complementary" and config.loss.kind == "gce" and config.loss.q == 0:
        yield "loss.q: must be greater than 0 for loss.kind=gce, got 0; its limit there is loss.kind=log"
    if config.method == "triplet-hardest" and config.loss.first_epochs >= last:
        yield (
            f"loss.first_epochs: {config.loss.first_epochs} epochs take all negatives, and train.pieces {pieces} ends "
            f"with {last}: none would take the hardest; method triplet takes all negatives throughout"
        )
    for method, warmup in (("decl", config.decl.warmup), ("mscn", config.mscn.warmup)):
        if config.method == method and warmup >= last:
            yield (
                f"{method}.warmup: {warmup} epochs count every pair as matched, and train.pieces {pieces} ends with "
                f"{last}: no pair would ever be judged"
            )
    if config.method == "decl" and config.decl.least_negatives > config.decl.most_negatives:
        yield (
            f"decl.least_negatives: {config.decl.least_negatives} is more than decl.most_negatives, "
            f"{config.decl.most_negatives}"
        )
    matchers, reason = MATCHERS_OF.get(config.method, (MATCHER_NAMES, ""))
    if config.matcher.name not in matchers:
        yield (
            f"method {config.method} does not go with matcher {config.matcher.name}: {reason}; "
            f"it goes with {', '.join(matchers)}"
        )


def _wrong_value(details: Any, values: Mapping[str, tuple[Any, str]]) -> str:
    """`file: train.lr: must be greater than 0, got -1` of one pydantic error."""
    key = ".".join(part for part in details["loc"] if isinstance(part, str))
    source = values[key][1]
    where = f"{source}: {key}" if source else key
    place = "".join(f"[{part}]" for part in details["loc"] if isinstance(part, int))
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "value_error":
        return f"{where}{place}: {context['error']}"
    choices = _choices(KEYS[key].annotation)
    if choices:
        near = did_you_mean(given, choices) if isinstance(given, str) else ""
        return f"{where}: must be one of {', '.join(choices)}, got {_show(given)}{near}"
    if kind in MESSAGES:
        bounds = {name: f"{bound:g}" if isinstance(bound, float) else bound for name, bound in context.items()}
        return f"{where}{place}: {MESSAGES[kind].format(**bounds)}, got {_show(given)}"
    expected = "whole number" if place else _type_name(KEYS[key].annotation)
    article = "" if expected in ("text", "true or false") else "a "
    return f"{where}{place}: must be {article}{expected}, got {_show(given)}"


def _choices(annotation: Any) -> tuple[str, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _type_name(annotation: Any) -> str:
    """What a user should write: text, number, whole number, ... or the choices."""
    if choices := _choices(annotation):
        return " | ".join(choices)
    if get_origin(annotation) is tuple:
        return "list of whole numbers"
    if get_origin(annotation) in (Union, types.UnionType):
        return _type_name(next(part for part in get_args(annotation) if part is not type(None)))
    names: dict[Any, str] = {str: "text", bool: "true or false", int: "whole number", float: "number"}
    return names[annotation]


def _show(value: Any) -> str:
    """A given value as in TOML, shortened."""
    text = str(value).lower() if isinstance(value, bool) else "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
