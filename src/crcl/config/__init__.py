"""Settings of a training: the schema, TOML presets and files, `key=value` settings."""

from crcl.config.loading import (
    KEYS,
    SECTIONS,
    describe_keys,
    differences,
    from_dict,
    given,
    keys_of,
    load,
    presets,
    read_toml,
    to_dict,
)
from crcl.config.schema import DEVICES, DIVIDING, MATCHER_NAMES, MATCHERS_OF, METHOD_NAMES, Config, DataConfig, Section

__all__ = [
    "DEVICES",
    "DIVIDING",
    "KEYS",
    "MATCHERS_OF",
    "MATCHER_NAMES",
    "METHOD_NAMES",
    "SECTIONS",
    "Config",
    "DataConfig",
    "Section",
    "describe_keys",
    "differences",
    "from_dict",
    "given",
    "keys_of",
    "load",
    "presets",
    "read_toml",
    "to_dict",
]
