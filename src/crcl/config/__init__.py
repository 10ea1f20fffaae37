"""Settings of a training: the schema, TOML presets and files, `key=value` settings."""

from crcl.config.composing import all_keys, file_keys, sections
from crcl.config.loading import (
    differences,
    from_dict,
    given,
    keys_of,
    load,
    presets,
    read_toml,
    to_dict,
)
from crcl.config.messages import describe_keys
from crcl.config.schema import DEVICES, Config, DataConfig

__all__ = [
    "DEVICES",
    "Config",
    "DataConfig",
    "all_keys",
    "describe_keys",
    "differences",
    "file_keys",
    "from_dict",
    "given",
    "keys_of",
    "load",
    "presets",
    "read_toml",
    "sections",
    "to_dict",
]
