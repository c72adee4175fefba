"""Paths among the values of flags. Declarations, which models read too, know no files."""

import dataclasses
from typing import Any

from tftrain.config.fields import Config
from tftrain.files.addresses import absolute
from tftrain.files.reading import expanded


def with_absolute_paths(section: Config) -> Config:
    """Returns a copy of a dataclass whose paths hold in any working folder; addresses are as they were."""
    paths = [field.name for field in dataclasses.fields(section) if field.metadata.get("path")]
    return dataclasses.replace(section, **{name: absolute(path) for name in paths if (path := getattr(section, name))})


def expand(field: dataclasses.Field, value: Any) -> Any:
    """Returns the value of a flag with `~` and variables of its paths replaced; for the ValueError see `expanded`."""
    if not value or not field.metadata["has_path"]:
        return value
    return tuple(map(expanded, value)) if isinstance(value, tuple) else expanded(value)
