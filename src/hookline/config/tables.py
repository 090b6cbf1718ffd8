"""Tables of settings that belong to one part, such as ``[gateway]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from .._base.frozen import thaw
from .._base.text import did_you_mean
from .errors import ConfigError
from .settings import KEYS

T = TypeVar("T", bound=msgspec.Struct)


def options_of(kind: type[T], name: str, table: Mapping[str, Any]) -> T:
    """The options in a table of settings, as a struct with a field for each.

    Raises:
        ConfigError: one that does not exist, or a value it cannot have.
    """
    kinds, fields = get_type_hints(kind), kind.__struct_fields__
    for key, value in table.items():
        choices = get_args(kinds[key]) if get_origin(kinds.get(key)) is Literal else (value,)
        if value not in choices:
            hint = did_you_mean(str(value), choices)
            raise ConfigError(f"{name}.{key}: expected one of {', '.join(choices)}; got {value!r:.80}.{hint}")
        if key not in fields and key in KEYS:
            raise ConfigError(f"{name}: {key!r} is no setting of the {name}: it belongs above [{name}]")
        if key not in fields:
            hint = did_you_mean(key, fields)
            raise ConfigError(f"{name}: there is no setting {key!r}.{hint} Known: {', '.join(fields)}")
    try:
        return msgspec.convert(thaw(table), kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        raise ConfigError(f"{name}{where.strip('`').removeprefix('$')}: {what}") from None
