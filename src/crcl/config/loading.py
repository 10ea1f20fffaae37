"""Reading a config: TOML presets and files, `key=value` settings, stored runs.

All errors are reported at once, one line per key, with the nearest valid key.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from crcl.config import composing
from crcl.config.messages import choices_of, nearest_key, show, type_name, wrong_value
from crcl.config.schema import Config
from crcl.errors import InputError, did_you_mean
from crcl.matchers import MATCHERS


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
    errors: list[InputError] = []
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
    """The values of `key=value` settings by dotted key, without validation."""
    return {key: value for setting in settings for key, value in _flatten(_read_setting(setting, [])).items()}


def keys_of(settings: Sequence[str]) -> list[str]:
    """The dotted keys of `key=value` settings, without validation."""
    return list(given(settings))


def differences(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configs differ, with both values."""
    left, right = _flatten(to_dict(one)), _flatten(to_dict(other))
    return {key: (left[key], right[key]) for key in left if left[key] != right[key]}


def from_dict(values: Any, *, source: str = "") -> Config:
    """The config that `to_dict` wrote; errors name `source`, the file it was read from."""
    errors: list[InputError] = []
    if not isinstance(values, Mapping):
        raise InputError(f"must be an object of sections, got {show(values)}", where=source)
    return _build(_named(values, source=source, errors=errors), errors)


def to_dict(config: Config) -> dict[str, Any]:
    """The config as plain JSON values, with every key."""
    return config.model_dump(mode="json")


def presets() -> list[str]:
    """Names of the shipped presets, sorted."""
    folder = resources.files("crcl") / "config" / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def _read_preset(name: str, errors: list[InputError]) -> dict[str, Any]:
    if name not in presets():
        unknown = f"unknown preset '{name}'{did_you_mean(name, presets())}"
        errors.append(InputError(unknown, hint=f"presets: {', '.join(presets())}"))
        return {}
    return tomllib.loads((resources.files("crcl") / "config" / "presets" / f"{name}.toml").read_text(encoding="utf-8"))


def read_toml(path: Path, errors: list[InputError]) -> dict[str, Any]:
    """The content of a TOML file; problems are appended to `errors`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        errors.append(InputError("no such file", where=path))
    except OSError as error:
        errors.append(InputError(f"cannot be read: {error.strerror}", where=path))
    except UnicodeDecodeError as error:
        errors.append(InputError(f"not UTF-8 at byte {error.start}", where=path))
    except RecursionError:
        errors.append(InputError("nested too deeply", where=path))
    except tomllib.TOMLDecodeError as error:  # its message ends with line and column
        errors.append(InputError(f"not valid TOML: {error}", where=path))
    except ValueError:  # of Python, which reads no number of more than 4,300 digits
        errors.append(InputError("a number of too many digits", where=path))
    return {}


def _read_setting(setting: str, errors: list[InputError]) -> dict[str, Any]:
    """Parse `key=value` with a TOML value; text that is not TOML, or belongs to a text key, is taken literally."""
    key, equals, text = (part.strip() for part in setting.partition("="))
    if not (key and equals):
        errors.append(InputError("must be key=value, as in loss.tau=0.03", where=repr(setting)))
        return {}
    try:
        parsed = tomllib.loads(f"value = {text}")
        value = parsed["value"] if len(parsed) == 1 else text
    except tomllib.TOMLDecodeError:
        # TOML has no `.5`, but users write it
        value = float(text) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE) else text
    except (ValueError, RecursionError):  # thousands of digits, or of brackets: no value of any key but a text
        value = text
    known = composing.all_keys().get(key)
    takes_text = known and (type_name(known.annotation) == "text" or choices_of(known.annotation))
    return {key: text if takes_text and not isinstance(value, str) else value}


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key; an empty table stays as a value, so that a misspelt empty section is reported."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{key}.")
        else:
            flat[key] = value
    return flat


def _named(values: Mapping[str, Any], *, source: str, errors: list[InputError]) -> dict[str, tuple[Any, str]]:
    """The values of known keys; unknown keys are appended to `errors`."""
    known, keys, sections = {}, composing.all_keys(), composing.sections()
    for key, value in _flatten(values).items():
        where = f"{source}: " if source else ""
        if key in keys:
            known[key] = (value, source)
        elif key not in sections:
            errors.append(InputError(f"unknown key{nearest_key(key)}", where=f"{where}{key}"))
        elif value != {}:
            leaves = ", ".join(f"{key}.{leaf}" for leaf in sections[key].model_fields)
            what = f"is a section, not a value, got {show(value)}"
            errors.append(InputError(what, where=f"{where}{key}", hint=f"its keys are {leaves}"))
    return known


def _build(values: Mapping[str, tuple[Any, str]], errors: list[InputError]) -> Config:
    """The config from dotted keys; raises one InputError with `errors` and every invalid value."""
    nested: dict[str, Any] = {}
    for key, (value, _) in values.items():
        section, _, leaf = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[leaf] = value
    wrong: list[InputError] = []
    try:
        config = composing.model().model_validate(nested)
    except ValidationError as error:
        # a list without valid entries is also "too short": report that for empty lists only
        found = [details for details in error.errors() if details["type"] != "too_short" or not details["input"]]
        wrong = [wrong_value(details, values) for details in found]
    else:
        wrong = [InputError(problem) for problem in _contradictions(config)]
    if errors or wrong:
        raise InputError.several([*errors, *wrong])
    return config


_LOCAL = "it compares regions with words, so that vectors alone do not do; train.memory limits what it takes"


def _contradictions(config: Config) -> Iterator[str]:
    """Problems with combinations of settings that are valid by themselves."""
    record, matcher = config.record, MATCHERS[config.matcher.name]
    yield from record.contradictions(pieces=config.train.pieces, **config.of_method())
    if config.train.chunk and (reason := matcher.unchunked or _LOCAL * (not matcher.one_vector)):
        yield f"train.chunk: matcher {matcher.name} cannot read a batch in chunks: {reason}"
    if reason := record.refuses(matcher):
        yield (
            f"method {record.name} does not go with matcher {matcher.name}: {reason}; "
            f"it goes with {', '.join(record.matchers)}"
        )
