"""Settings of a plugin: what there is, and whether given values fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from .._base.frozen import freeze, plain
from .._base.text import did_you_mean, error_text
from .._kernel.errors import RegistrationError

_TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list[Any], "object": dict[str, Any],
}  # fmt: skip


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One setting of a plugin.

    Args:
        type: what it may be.
        default: its value where nobody gives one; without one it is absent there, unless it is ``required``.
        description: what it is, for people.
        required: whether somebody must give it.
        secret: whether its value is kept out of all messages.
        env: the environment variable that it comes from if nobody gives it.
        choices: the values that it may have, if there are but a few.
        minimum: of a number.
        maximum: of a number.
    """

    type: Literal["string", "integer", "number", "boolean", "array", "object"] = "string"
    default: Any = None
    description: str = ""
    required: bool = False
    secret: bool = False
    env: str = ""
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None

    def check(self, value: Any) -> Any:
        """The value, if it fits.

        Raises:
            ValueError: it does not; the words say what is expected.
        """
        try:
            checked = msgspec.convert(plain(value), _TYPES[self.type])
        except msgspec.ValidationError as error:
            raise ValueError(self._expected(value, error_text(error))) from None
        if self.type in ("integer", "number"):
            if self.minimum is not None and checked < self.minimum:
                raise ValueError(self._expected(value, f"at least {self.minimum:g}"))
            if self.maximum is not None and checked > self.maximum:
                raise ValueError(self._expected(value, f"at most {self.maximum:g}"))
        if self.choices and checked not in self.choices:
            raise ValueError(self._expected(value, f"it is none of {', '.join(map(repr, self.choices))}"))
        return checked

    def _expected(self, value: Any, problem: str) -> str:
        got = "" if self.secret else f"; got {value!r:.80}"
        return f"expected {self.type}{got}" + ("" if self.secret else f" ({problem})")

    def from_env(self) -> Any:
        """The value in the environment, ``None`` if it is not there.

        Raises:
            ValueError: it is not of this type.
        """
        text = os.environ.get(self.env) if self.env else None
        if text is None or self.type == "string":
            return text
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            raise ValueError(f"the environment variable {self.env} holds no {self.type}") from None


Schema = Mapping[str, Setting]


def schema_of(table: Mapping[str, Any]) -> dict[str, Setting]:
    """Settings from a table of them; each may be a :class:`Setting` already.

    Raises:
        RegistrationError: one that makes no sense.
    """
    schema = {}
    for name, about in table.items():
        if isinstance(about, Setting):
            schema[name] = about
            continue
        known = Setting.__struct_fields__
        unknown = [key for key in about if key not in known] if isinstance(about, Mapping) else []
        if unknown:
            raise RegistrationError(
                f"settings.{name} has no {unknown[0]!r}.{did_you_mean(unknown[0], known)} It takes {', '.join(known)}"
            )
        kind = about.get("type", "string") if isinstance(about, Mapping) else "string"
        if isinstance(kind, str) and kind not in _TYPES:
            hint = did_you_mean(kind, _TYPES)
            raise RegistrationError(
                f"settings.{name}: there is no type {kind!r}.{hint} It is one of {', '.join(_TYPES)}"
            )
        try:
            schema[name] = setting = msgspec.convert(plain(about), Setting)
            if setting.default is not None:
                setting.check(setting.default)
        except (msgspec.ValidationError, ValueError) as error:
            raise RegistrationError(f"settings.{name}: {error_text(error)}") from error
    return schema


def checked(schema: Schema, values: Any, where: str) -> Mapping[str, Any]:
    """The values that hold: those given, those of the environment, and the defaults.

    Raises:
        RegistrationError: an unknown one, one that does not fit, or a required one that is missing.
    """
    if not isinstance(values, Mapping):
        raise RegistrationError(f"{where} is a table of settings, not {type(values).__name__}")
    for name in values:
        if name not in schema:
            known = f"It has {', '.join(schema)}" if schema else "It has no settings"
            raise RegistrationError(f"{where} has no setting {name!r}.{did_you_mean(name, schema)} {known}")
    held = {}
    for name, setting in schema.items():
        try:
            value = values[name] if name in values else setting.from_env()
            if value is not None:
                held[name] = setting.check(value)
            elif setting.default is not None:
                held[name] = setting.default
            elif setting.required:
                env = f", or the environment variable {setting.env}" if setting.env else ""
                raise ValueError(f"it is required: give it in [{where}]{env}")
        except ValueError as error:
            raise RegistrationError(f"{where}.{name}: {error_text(error)}") from error
    frozen: Mapping[str, Any] = freeze(held)
    return frozen
