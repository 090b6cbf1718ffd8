"""Typed output: the JSON schema of a type for the model, and the conversion of its reply to that type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union, get_args, get_origin

import msgspec

from .._base.frozen import freeze, json_text, plain, scrub
from .._base.text import describe, error_text
from .._kernel.errors import OutputError, RegistrationError

if TYPE_CHECKING:  # type variables with defaults come with Python 3.13
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=str)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")

OUTPUT_RETRIES = 2
"""The default number of retries after a reply that does not match the output type."""

VALUE = "value"
"""The property that contains an output that is not an object: providers only accept schemas of objects."""

_MAX_PROBLEMS = 10
_FENCE = re.compile(r"```[\w+-]*[ \t]*\r?\n(.*?)\r?\n?[ \t]*```", re.DOTALL)
_STRUCTURE = re.compile(r'[{}"]')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_REF = "#/$defs/"


class InvalidOutputError(ValueError):
    """A reply does not match the output type. The message is for the model."""


class Output(NamedTuple):
    """A valid reply: the value, and its JSON form, frozen."""

    value: Any
    json: Any


class OutputSpec:
    """The schema and the reader of an output type. The agent creates it once.

    Pydantic reads all types that it supports: models, dataclasses, ``TypedDict``, enums, ``Literal``, unions,
    containers and plain types. Msgspec reads types that contain a ``msgspec.Struct``. For a union that msgspec rejects,
    such as a struct and a pydantic model, the members are tried in order. A struct inside a pydantic model, or a model
    inside a struct, is not supported.

        >>> spec = OutputSpec(list[int])
        >>> spec.read('{"value": [1, 2]}').value
        [1, 2]

    Raises:
        RegistrationError: neither library can read the type, or it has no JSON schema.
    """

    def __init__(self, output_type: Any) -> None:
        self.name = _name_of(output_type)
        try:
            self._reader = _reader_of(output_type)
            root = _rooted(self._reader.schema)
            self.wrapped = root.get("type") != "object"
            """Whether the model writes the value into the property ``value`` of an object."""
            self.schema: Mapping[str, Any] = freeze(_wrapped(root) if self.wrapped else root)
            """The JSON schema of the reply, which is always an object."""
        except Exception as error:
            raise RegistrationError(
                f"output_type: {self.name} cannot be read from JSON ({_first_sentence(error)}). Use a pydantic model, "
                "a dataclass, a TypedDict, a msgspec.Struct, a plain type such as list[str], or a union of these"
            ) from error

    def read(self, text: str) -> Output:
        """Convert a reply to the output type.

        The reply is JSON, or contains exactly one JSON object, possibly in a code fence or with other text.

        Raises:
            InvalidOutputError: the reply does not match; the message says why.
        """
        data = find_json(text)
        inner = _unwrapped(data) if self.wrapped else None
        if inner is None:
            return self._reader.read(data)
        try:
            return self._reader.read(inner)
        except InvalidOutputError:
            try:
                return self._reader.read(data)  # the type itself may have a property of this name
            except InvalidOutputError:
                pass
            raise


class RunOutput:
    """The output of one run: its required type, and the last valid reply."""

    __slots__ = ("accepted", "retries", "spec")

    def __init__(self, spec: OutputSpec, retries: int) -> None:
        self.spec, self.retries = spec, retries
        self.accepted: Output | None = None

    def check(self, text: str) -> str:
        """Accept a final reply and return an empty string, or return the problem for the model.

        Raises:
            OutputError: a validator of the type failed, so that another reply would not help.
        """
        self.accepted = None
        try:
            self.accepted = self.spec.read(text)
        except InvalidOutputError as invalid:
            return error_text(invalid)
        except OutputError:
            raise
        except Exception as error:
            raise OutputError(self.spec.name, text, describe(error)) from error
        return ""


def output_spec(output_type: Any) -> OutputSpec | None:
    """Return the specification of an output type; ``None`` for text.

    Raises:
        RegistrationError: the type cannot be read from JSON.
    """
    if output_type is None or output_type is str:
        return None
    return output_type if isinstance(output_type, OutputSpec) else OutputSpec(output_type)


def retry_note(problem: str) -> str:
    """Return the message to the model after a reply that does not match."""
    return f"That reply does not match the required output: {problem}\nReply again with only the matching JSON."


def find_json(text: str) -> bytes:
    """Return the JSON in a reply: the whole reply, its only code fence, or its only JSON object.

    Raises:
        InvalidOutputError: there is no JSON, or more than one object.
    """
    text = scrub(text).strip()
    if not text:
        raise InvalidOutputError("the reply is empty")
    if _is_json(text):
        return text.encode()
    fence = _FENCE.fullmatch(text)
    if fence is not None and _is_json(fence[1]):
        return fence[1].strip().encode()
    found = [part for part in _objects(text) if _is_json(part)]
    if len(found) == 1:
        return found[0].encode()
    if found:
        raise InvalidOutputError(f"the reply contains {len(found)} JSON objects; it must contain one")
    raise InvalidOutputError("the reply is not JSON")


def _objects(text: str) -> Iterator[str]:
    """Yield the parts of a text between matching outermost braces, in one pass: a reply may be long or malicious."""
    depth = begin = at = 0
    while (mark := _STRUCTURE.search(text, at)) is not None:
        at = mark.end()
        if mark[0] == "{":
            if not depth:
                begin = mark.start()
            depth += 1
        elif mark[0] == '"' and depth:  # a quote outside braces is ordinary text
            string = _STRING.match(text, mark.start())
            if string is None:
                return
            at = string.end()
        elif mark[0] == "}" and depth:
            depth -= 1
            if not depth:
                yield text[begin:at]


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _unwrapped(data: bytes) -> bytes | None:
    """Return the content of ``{"value": ...}``, or ``None`` for any other JSON."""
    try:
        found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
    return bytes(found[VALUE]) if found.keys() == {VALUE} else None


# Schemas


def _rooted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve a reference at the root of a schema, because some APIs require an object there."""
    root, reference = dict(schema), schema.get("$ref", "")
    if not reference.startswith(_REF):
        return root
    definitions = dict(root.pop("$defs"))
    name = reference.removeprefix(_REF)
    root = {**definitions[name], **{key: value for key, value in root.items() if key != "$ref"}}
    if f'"{reference}"' not in json_text(definitions):  # the type is not recursive
        del definitions[name]
    return {**root, "$defs": definitions} if definitions else root


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    definitions = schema.pop("$defs", None)
    wrapper = {"type": "object", "properties": {VALUE: schema}, "required": [VALUE], "additionalProperties": False}
    return wrapper if definitions is None else {**wrapper, "$defs": definitions}


# Readers, one for each library


class _Reader(Protocol):
    schema: dict[str, Any]

    def read(self, data: bytes) -> Output:
        """Convert JSON to the output type.

        Raises:
            InvalidOutputError: the JSON does not match the type.
        """
        ...


class _PydanticReader:
    def __init__(self, output_type: Any) -> None:
        from pydantic import TypeAdapter
        from pydantic.json_schema import GenerateJsonSchema

        class Quiet(GenerateJsonSchema):
            """No warnings about defaults that JSON cannot represent: the schema is only for a model."""

            ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

        self._adapter: Any = TypeAdapter(output_type)
        self.schema = self._adapter.json_schema(schema_generator=Quiet)

    def read(self, data: bytes) -> Output:
        from pydantic import ValidationError

        try:
            value = self._adapter.validate_json(data)
        except ValidationError as error:
            raise InvalidOutputError(_problems(error)) from error
        dump = partial(self._adapter.dump_python, value, mode="json", by_alias=True, warnings=False)
        return Output(value, _json_form(dump, data))


def _problems(error: Any) -> str:
    found = []
    for item in error.errors(include_url=False, include_context=False)[:_MAX_PROBLEMS]:
        where = ".".join(str(part) for part in item["loc"])
        message = f"{item['msg'][:1].lower()}{item['msg'][1:]}"
        given = "" if item["type"] in ("missing", "json_invalid") else f", not {item['input']!r:.80}"
        found.append(f"{where}: {message}{given}" if where else f"{message}{given}")
    return "; ".join(found)


class _MsgspecReader:
    def __init__(self, output_type: Any) -> None:
        self.schema = msgspec.json.schema(output_type)
        self._decoder: Any = msgspec.json.Decoder(output_type)

    def read(self, data: bytes) -> Output:
        try:
            value = self._decoder.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidOutputError(error_text(error)) from error
        return Output(value, _json_form(partial(plain, value), data))


def _json_form(dump: Callable[[], Any], data: bytes) -> Any:
    """Return a value as frozen JSON; if its type cannot be serialised, the JSON that the model wrote."""
    try:
        return freeze(dump())
    except Exception:  # noqa: BLE001 - a custom serializer may raise anything
        try:
            return freeze(msgspec.json.decode(data))
        except (ValueError, RecursionError) as error:
            raise InvalidOutputError(error_text(error)) from error


class _UnionReader:
    """Reads the first member of a union that matches."""

    def __init__(self, members: tuple[Any, ...]) -> None:
        self._readers = [_reader_of(member) for member in members]
        self._names = [_name_of(member) for member in members]
        self.schema: dict[str, Any] = {"anyOf": []}
        definitions: dict[str, Any] = {}
        for reader in self._readers:
            branch = dict(reader.schema)
            for name, definition in branch.pop("$defs", {}).items():
                if definitions.setdefault(name, definition) != definition:
                    raise TypeError(f"two types in it are called {name}")
            self.schema["anyOf"].append(branch)
        if definitions:
            self.schema["$defs"] = definitions

    def read(self, data: bytes) -> Output:
        problems = []
        for reader, name in zip(self._readers, self._names, strict=True):
            try:
                return reader.read(data)
            except InvalidOutputError as invalid:
                problems.append(f"as {name}: {invalid}")
        raise InvalidOutputError("; ".join(problems))


def _reader_of(output_type: Any) -> _Reader:
    if isinstance(output_type, str) or inspect.isroutine(output_type):
        raise TypeError("it is not a type")
    if not _has_struct(output_type):
        try:
            return _PydanticReader(output_type)
        except Exception as error:  # noqa: BLE001 - pydantic rejects a type with many kinds of errors
            try:  # a dataclass with a struct in a field, or typing.TypedDict before Python 3.12
                return _MsgspecReader(output_type)
            except Exception:  # noqa: BLE001 - the error of pydantic is more helpful
                raise error from None
    try:
        return _MsgspecReader(output_type)
    except TypeError:
        if not _is_union(output_type):
            raise
    return _UnionReader(get_args(output_type))


def _has_struct(output_type: Any) -> bool:
    if isinstance(output_type, type) and issubclass(output_type, msgspec.Struct):
        return True
    return any(_has_struct(part) for part in get_args(output_type))


def _is_union(output_type: Any) -> bool:
    from types import UnionType

    return get_origin(output_type) in (Union, UnionType)


def _first_sentence(error: Exception) -> str:
    return (error_text(error) or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(".")


def _name_of(output_type: Any) -> str:
    is_class = isinstance(output_type, type) and not get_args(output_type)
    return output_type.__qualname__.rpartition(".")[2] if is_class else f"{output_type!r:.120}".replace("typing.", "")
