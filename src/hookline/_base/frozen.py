"""Immutable values: frozen JSON, an append-only history, and the base class of payloads and events."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import chain, islice
from math import isfinite
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    NoReturn,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

import msgspec

from .text import did_you_mean

T = TypeVar("T")

MAX_DEPTH = 200
_new_dict, _new_list = dict.__new__, tuple.__new__
_update = dict.update
_SCALARS = frozenset({str, int, float, bool, type(None)})


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError(
        f"{type(self).__name__} cannot be changed in place; "
        "make a changed copy (payload.replace(...), or dict(...)/list(...) of this)"
    )


class FrozenDict(dict[str, Any]):
    """An immutable JSON object. It equals the plain dict with the same items."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __new__(cls, *args: Any, **kwargs: Any) -> FrozenDict:
        """Freeze the items at every depth."""
        return freeze(dict(*args, **kwargs))  # type: ignore[no-any-return]

    def __init__(self, *_: object, **__: object) -> None:
        """Do nothing: ``dict.__init__`` would change the object in place."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return thaw(self)  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[dict[str, Any]]]:
        return freeze, (thaw(self),)


def _compared(operator: Callable[[Any, Any], bool]) -> Callable[[Any, object], bool]:
    def compare(self: Iterable[Any], other: object) -> bool:
        return operator(list(self), list(other)) if isinstance(other, list) else NotImplemented

    return compare


class FrozenList(tuple[Any, ...]):
    """An immutable JSON array. It equals the plain list with the same items.

    It is a tuple, because C code such as ``heapq`` changes a subclass of ``list`` without calling its methods.
    ``isinstance(value, list)`` is true nevertheless, so that code that traverses JSON works. Slices, sums and copies
    are plain lists.
    """

    __slots__ = ()
    __class__ = property(lambda self: list)  # pyright: ignore[reportIncompatibleMethodOverride] # to be a list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __lt__, __le__ = _compared(operator.lt), _compared(operator.le)
    __gt__, __ge__ = _compared(operator.gt), _compared(operator.ge)

    def __new__(cls, items: Iterable[Any] = ()) -> FrozenList:
        """Freeze the items at every depth."""
        return freeze(list(items))  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        if type(other) is FrozenList:
            return tuple.__eq__(self, other)
        return isinstance(other, list) and list(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self)

    def __getitem__(self, index: Any) -> Any:
        item = tuple.__getitem__(self, index)
        return list(item) if type(index) is slice else item

    def __add__(self, other: Any) -> list[Any]:  # type: ignore[override]
        # No __radd__: with it, ``found += frozen`` would create a new list instead of changing ``found``.
        return [*self, *other] if isinstance(other, list) else NotImplemented

    def __mul__(self, times: Any) -> list[Any]:  # type: ignore[override]
        return list(self) * times  # type: ignore[no-any-return]

    __rmul__ = __mul__  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def copy(self) -> list[Any]:
        """Return a plain list of the same items."""
        return list(self)

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> list[Any]:
        return thaw(self)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[[Any], Any], tuple[list[Any]]]:
        # Not __reduce__: pickle looks it up on ``self.__class__``, which is ``list``.
        return freeze, (thaw(self),)


def freeze(value: Any, _depth: int = 0) -> Any:
    """Return a frozen copy of a JSON value.

    Raises:
        TypeError: the value contains something that is not JSON.
        ValueError: the value is nested more than ``MAX_DEPTH`` levels deep.
    """
    kind = type(value)
    if kind is not dict:
        if kind in _SCALARS or kind is FrozenDict or kind is FrozenList:
            return value
        if value is EMPTY:
            return empty()
    if _depth >= MAX_DEPTH:
        raise ValueError(f"JSON nested more than {MAX_DEPTH} levels deep")
    if kind is dict or isinstance(value, Mapping):
        frozen: FrozenDict = _new_dict(FrozenDict)
        _update(frozen, value)
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"JSON keys are strings, not {type(key).__name__} ({key!r})")
            if type(item) is not str and type(item) not in _SCALARS:
                dict.__setitem__(frozen, key, freeze(item, _depth + 1))
        return frozen
    if isinstance(value, (list, tuple)):
        return _new_list(FrozenList, [v if type(v) in _SCALARS else freeze(v, _depth + 1) for v in value])
    if isinstance(value, str):  # enums and other subclasses become plain strings
        return str.__str__(value)
    for plain_type in (int, float):
        if isinstance(value, plain_type):
            return plain_type(value)
    raise TypeError(f"{type(value).__name__} is not JSON (str, number, bool, None, list, dict)")


def freeze_flat(value: Mapping[str, Any]) -> FrozenDict:
    """Freeze an object that contains only scalars."""
    frozen: FrozenDict = _new_dict(FrozenDict)
    dict.update(frozen, value)
    return frozen


def thaw(value: Any) -> Any:
    """Return a plain, mutable deep copy of a frozen JSON value."""
    if isinstance(value, dict):
        copy = value.copy()
        for key, item in value.items():
            if type(item) not in _SCALARS:
                copy[key] = thaw(item)
        return copy
    if isinstance(value, list):
        return [item if type(item) in _SCALARS else thaw(item) for item in value]
    return value


def private_copy(value: Any) -> Any:
    """Return a frozen deep copy of a JSON value. Only scalars and frozen lists of scalars are shared.

    ``dict.__setitem__`` and ``eval(text, frozen)`` can change a frozen dict despite its methods. So hooks get one copy
    of a value, and the run keeps another.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is FrozenDict:
        copy: FrozenDict = _new_dict(FrozenDict)
        _update(copy, value)
        for key, item in value.items():
            if type(item) not in _SCALARS:
                dict.__setitem__(copy, key, private_copy(item))
        return copy
    if kind is FrozenList:
        for item in value:
            if type(item) not in _SCALARS:
                return _new_list(FrozenList, map(private_copy, value))
        return value
    return freeze(value)


class _Empty(FrozenDict):
    """The type of ``EMPTY``. It differs from ``FrozenDict``, so that freezing ``EMPTY`` creates a new object."""

    __slots__ = ()


EMPTY: FrozenDict = _new_dict(_Empty)
"""An empty mapping for default parameters. Values that hooks see use a new :func:`empty` one each."""

empty: Callable[[], FrozenDict] = partial(_new_dict, FrozenDict)
"""Create a new empty frozen object, for ``msgspec.field(default_factory=empty)``."""


def parse_object(value: object) -> tuple[FrozenDict, str | None]:
    """Parse a JSON object. Return it frozen and ``None``, or an empty object and the text that could not be parsed."""
    parsed = value
    try:
        if isinstance(value, str):
            parsed = msgspec.json.decode(value) if value.strip() else {}
        frozen = freeze({} if parsed is None else parsed)
    except (ValueError, TypeError, RecursionError):
        return empty(), value if isinstance(value, str) else f"<{type(value).__name__} that is not usable JSON>"
    if type(frozen) is FrozenDict:
        return frozen, None
    return empty(), value if isinstance(value, str) else json_text(frozen)


def json_problem(value: Any) -> str | None:
    """Return why a value of JSON types cannot be written as JSON, or ``None`` if it can.

    Encoders would write infinity and NaN as ``null``, and replace half a character (a lone surrogate): different values
    would look the same to a person who approves a call, and have the same digest.
    """
    return None if _exact_json(value) is not None or _is_expressible(value) else _describe_problem(value, "")


def _exact_json(value: Any) -> bytes | None:
    """Return a value as JSON, or ``None`` if the encoder would write another value, or cannot write it."""
    try:
        data = msgspec.json.encode(value)
    except Exception:  # noqa: BLE001 - invalid Unicode, or it is not JSON
        return None
    # ``find``, because ``in`` first tries to take ``b"null"`` for a number, which costs more than the search.
    return data if data.find(b"null") < 0 or not has_non_finite(value) else None


def _is_expressible(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return value.isascii() or _SURROGATE.search(value) is None
    if kind is float:
        return isfinite(value)
    if kind in _SCALARS:
        return True
    if isinstance(value, (dict, Mapping)):  # a dict first, because the check of Mapping is slow
        return all(map(_is_expressible, value.values())) and all(map(_is_expressible, value))
    return all(map(_is_expressible, value)) if isinstance(value, (list, tuple)) else True


def _describe_problem(value: Any, where: str) -> str | None:
    prefix = f"{where}: " if where else ""
    if isinstance(value, str):
        return f"{prefix}half of a character (a lone surrogate) is not valid Unicode"
    if isinstance(value, float):
        return f"{prefix}{_NOT_FINITE[str(value)]} is not a number in JSON"
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    key, item = next((key, item) for key, item in items if not (_is_expressible(key) and _is_expressible(item)))
    inside = scrub(f"{where}.{key}" if where else str(key))
    return _describe_problem(item if _is_expressible(key) else key, inside)


_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_FINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def has_non_finite(value: Any) -> bool:
    """Whether a JSON value contains infinity or NaN, which encoders write as ``null``."""
    if isinstance(value, float):
        return not isfinite(value)
    if type(value) in _SCALARS:
        return False
    if isinstance(value, (dict, Mapping)):
        return any(map(has_non_finite, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_non_finite, value))


def scrub(value: Any) -> Any:
    """Replace what JSON cannot express: lone surrogates by ``?``, and infinity and NaN by their names."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float) and not isfinite(value):
        return _NOT_FINITE[str(value)]
    if isinstance(value, Mapping):
        return {scrub(key): scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    return value


def json_text(value: Any) -> str:
    """Return a JSON value as JSON text, after :func:`scrub` where that is needed."""
    data = _exact_json(value)
    return (msgspec.json.encode(scrub(value)) if data is None else data).decode()


def fingerprint(value: Any) -> bytes:
    """Return the bytes of a JSON value, to detect later whether it was changed in place.

    This is stricter than ``==`` with a copy: ``True`` differs from ``1``, and the order of keys matters.
    """
    return _exact_json(value) or repr(value).encode("utf-8", "backslashreplace")


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value. The order of keys does not matter.

    Raises:
        ValueError: JSON cannot express the value, so that another value would have the same digest.
    """
    import hashlib

    try:
        data = msgspec.json.encode(value, order="sorted")
    except TypeError:  # another kind of mapping or number
        value = freeze(value)
        data = msgspec.json.encode(value, order="sorted")
    except UnicodeEncodeError:
        raise ValueError(json_problem(value) or "it is not valid Unicode") from None
    if data.find(b"null") >= 0 and (problem := json_problem(value)):
        raise ValueError(problem)
    return hashlib.sha256(data).hexdigest()


def any_digest(value: Any) -> str:
    """Return the digest of a value after :func:`scrub`. It identifies what was recorded, never what was approved."""
    try:
        return digest(value)
    except ValueError:
        return digest(scrub(plain(value)))


class History(Sequence[T], Generic[T]):
    """An immutable sequence whose ``plus`` does not copy the existing items.

    Histories derived from one another share one buffer, and each of them sees only its own part of it.
    """

    __slots__ = ("_head", "_items", "_size")
    _head: tuple[T, ...]
    _items: list[T]
    _size: int

    def __new__(cls, items: Iterable[T] = ()) -> History[T]:
        """Create a history. There is no ``__init__``, which could be called again to change it."""
        new = super().__new__(cls)
        new._head, new._items = (), list(items)
        new._size = len(new._items)
        return new

    def plus(self, *items: T) -> History[T]:
        """Return this history followed by ``items``."""
        buffer, size = self._items, self._size
        for item in items:
            if len(buffer) == size:
                buffer.append(item)
            # Another branch or thread may have appended to the buffer first: then copy.
            if buffer[size] is not item:
                buffer = [*buffer[:size], item]
            size += 1
        new: History[T] = object.__new__(History)
        new._head, new._items, new._size = self._head, buffer, size
        return new

    def after(self, *head: T) -> History[T]:
        """Return this history preceded by ``head``."""
        new: History[T] = object.__new__(History)
        new._head, new._items, new._size = (*head, *self._head), self._items, self._size
        return new

    def tail_after(self, other: Sequence[T]) -> tuple[T, ...] | None:
        """Return the items after ``other`` if this history was derived from it, else ``None``."""
        if type(other) is not History or self._items is not other._items or self._head != other._head:
            return None
        return tuple(self._items[other._size : self._size]) if other._size <= self._size else None

    def tail_after_end_of(self, other: Sequence[T]) -> tuple[T, ...] | None:
        """Return the items after those that ``other`` ends with if this is ``other`` without its head and with more
        items, else ``None``.
        """
        if self._head or type(other) is not History or self._items is not other._items or other._size > self._size:
            return None
        return tuple(self._items[other._size : self._size])

    def __len__(self) -> int:
        return len(self._head) + self._size

    def __iter__(self) -> Iterator[T]:
        return chain(self._head, islice(self._items, self._size))

    def __reversed__(self) -> Iterator[T]:
        for index in range(self._size - 1, -1, -1):
            yield self._items[index]
        yield from reversed(self._head)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        size = len(self)
        if index < 0:
            index += size
        if not 0 <= index < size:
            raise IndexError("history index out of range")
        head = len(self._head)
        return self._head[index] if index < head else self._items[index - head]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (History, tuple, list)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"History({list(self)!r})"


def as_sealed(items: Sequence[Any]) -> Sequence[Any]:
    """Return items as an immutable sequence."""
    return items if type(items) is History else tuple(items)


def as_history(items: Sequence[Any]) -> History[Any]:
    """Return items as a history."""
    return items if type(items) is History else History(items)


class HistoryBuilder(Generic[T]):
    """Builds a history: ``append`` is cheap, and ``view`` returns all items so far."""

    __slots__ = ("_items", "_size", "_view")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._size = len(self._items)
        self._view: History[T] | None = None

    def append(self, item: T) -> None:
        """Add one item. Earlier views do not change."""
        items, size = self._items, self._size
        if len(items) == size:
            items.append(item)
        if items[size] is not item:  # a view was extended separately: continue in a new buffer
            self._items = [*items[:size], item]
        self._size, self._view = size + 1, None

    def view(self) -> History[T]:
        """Return all items so far."""
        if self._view is None:
            new: History[T] = object.__new__(History)
            self._view = new
            new._head, new._items, new._size = (), self._items, self._size
        return self._view


def _encode(value: object) -> object:
    if isinstance(value, History):
        return list(value)
    if isinstance(value, str):  # a Point
        return str(value)
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:  # the output of a run may have any type that pydantic supports
        return to_jsonable_python(value, by_alias=True)
    except PydanticSerializationError:
        raise TypeError(f"{type(value).__name__} has no JSON form") from None


json_encoder = msgspec.json.Encoder(enc_hook=_encode)


def encoded(value: Any) -> bytes:
    """Return a value as JSON. Lone surrogates, which a model may send, are replaced."""
    try:
        return json_encoder.encode(value)
    except UnicodeEncodeError:
        return json_encoder.encode(scrub(plain(value)))


"""Encodes payloads, events and the values in them."""


def plain(value: Any) -> Any:
    """Return a value as plain, mutable lists and dicts."""
    return _with_lists(msgspec.to_builtins(value, enc_hook=_encode))


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


Reader = Callable[[Any, str], Any]
_LOCATION = re.compile(r" - at `(?:key` in `)?\$(.*)`$")


class _Field:
    """A field of a struct: its type, and a function that converts mappings in its value to structs, if needed."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.read = _reader(kind)

    @cached_property
    def _box(self) -> Any:
        """A struct with only this field. ``msgspec.convert`` compiles any other type again for each value."""
        return msgspec.defstruct("Box", [("value", self.kind)], array_like=True)

    def convert(self, value: Any, path: str) -> Any:
        """Convert a value to the type of the field.

        Raises:
            TypeError: the value has another type; the message begins with the path.
        """
        if self.read is not None and not isinstance(value, msgspec.Struct):
            value = self.read(value, path)
        try:
            return msgspec.convert((value,), self._box).value
        except msgspec.ValidationError as error:
            raise _misfit(error, path, "[0]") from None


@lru_cache(maxsize=256)
def _fields_of(cls: type[msgspec.Struct]) -> dict[str, _Field]:
    return {field.name: _Field(field.type) for field in msgspec.structs.fields(cls)}


def _misfit(error: msgspec.ValidationError, path: str, box: str = "") -> TypeError:
    found = _LOCATION.search(str(error))
    message = str(error) if found is None else str(error)[: found.start()]
    return TypeError(f"{path}{found[1].removeprefix(box) if found else ''}: {message}")


def _reader(kind: Any) -> Reader | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return partial(_read_struct, kind)
    arguments = get_args(kind)
    readers = [read for read in map(_reader, arguments) if read is not None]
    if not readers:
        return None
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return readers[0] if len(readers) == 1 else None  # with several, the mapping would be ambiguous
    if origin is Annotated:
        return readers[0]
    is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
    return partial(_read_items if is_mapping else _read_sequence, readers[-1])


def _read_struct(cls: type[msgspec.Struct], value: Any, path: str) -> Any:
    if isinstance(value, cls) or not isinstance(value, Mapping):
        return value  # msgspec.convert reports what is wrong
    fields = _fields_of(cls)
    known: Iterable[str] = fields
    if issubclass(cls, Frozen):
        value, known = cls._read_mapping(value, path), (*fields, *cls._other_keys)
    given = {}
    for name, item in value.items():
        if name not in fields:
            raise TypeError(f"{path} has no field {name!r}.{did_you_mean(str(name), known)}")
        read = fields[name].read
        given[name] = item if read is None else read(item, f"{path}.{name}")
    try:
        return msgspec.convert(given, cls)
    except msgspec.ValidationError as error:
        raise _misfit(error, path) from None


def _read_sequence(read: Reader, value: Any, path: str) -> Any:
    if not isinstance(value, (list, tuple, Sequence)) or isinstance(value, (str, bytes)):
        return value
    return [
        item if isinstance(item, msgspec.Struct) else read(item, f"{path}[{index}]") for index, item in enumerate(value)
    ]


def _read_items(read: Reader, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: read(item, f"{path}[{key!r}]") for key, item in value.items()}


class Frozen(msgspec.Struct, frozen=True, gc=False):
    """Base class of payloads, events and the values in them: immutable, comparable, convertible to and from JSON.

    Immutable values have no reference cycles, so the garbage collector does not track them.

    Example::

        class Deployment(Frozen, frozen=True):
            version: str
            editable = frozenset({"version"})

        changed = deployment.replace(version="1.3")
    """

    editable: ClassVar[frozenset[str]] = frozenset()
    """The fields that a hook may change; all of them if this is empty."""

    _other_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that ``_read_mapping`` accepts besides the fields."""

    def replace(self, changes: Mapping[str, Any] | None = None, /, **fields: Any) -> Self:
        """Return a changed copy; the changes are keywords or a mapping such as ``dict(payload)``.

        Nested mappings are converted to the types of the fields. For stored JSON use ``from_json``, which ignores
        unknown keys.

        Raises:
            TypeError: an unknown field or a value of the wrong type, at any depth; the message names the path.
        """
        known = _fields_of(type(self))
        changed: dict[str, Any] = {}
        for name, value in {**changes, **fields}.items() if changes else fields.items():
            if name not in known:
                raise TypeError(f"{type(self).__name__} has no field {name!r}.{did_you_mean(str(name), known)}")
            if type(value) is not History:
                changed[name] = known[name].convert(value, f"{type(self).__name__}.{name}")
                continue
            # Check the items of a history, but keep the object, so that it still shares its buffer.
            old = getattr(self, name)
            tail = value.tail_after(old)
            items = list(value) if tail is None else list(tail)
            new = known[name].convert(items, f"{type(self).__name__}.{name}")
            same = all(a is b for a, b in zip(items, new, strict=True))
            changed[name] = value if same else History(new) if tail is None else old.plus(*new)
        return msgspec.structs.replace(self, **changed)

    @classmethod
    def of(cls, value: object) -> Self:
        """Return ``value`` if it has this type, or convert it from a mapping of fields.

        Raises:
            TypeError: it is neither.
        """
        if not isinstance(value, (cls, Mapping)):
            raise TypeError(f"expected a {cls.__name__}, not {type(value).__name__}")
        return _read_struct(cls, value, cls.__name__)  # type: ignore[no-any-return]

    @classmethod
    def _read_mapping(cls, given: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Convert a mapping with other names or formats to a mapping of fields."""
        return given

    def accept(self, value: object) -> Self:
        """Check a value that a hook returned, and return it as a changed copy of this one.

        Raises:
            TypeError: the value has another type, or changes a field that is not editable.
        """
        stored = msgspec.structs.astuple(self)  # not the attributes: AgentResult guards the reading of one
        if type(value) is type(self):
            fields = zip(self.__struct_fields__, stored, msgspec.structs.astuple(value), strict=True)
            changed = {name: new for name, old, new in fields if new is not old}
        elif isinstance(value, Mapping):
            known = dict(zip(self.__struct_fields__, stored, strict=True))
            changed = {name: new for name, new in value.items() if name not in known or new is not known[name]}
        else:
            raise TypeError(f"{type(value).__name__} is not a {type(self).__name__}")
        accepted = self.replace(changed)
        if self.editable and not self.editable.issuperset(changed):
            before, now = msgspec.structs.asdict(self), msgspec.structs.asdict(accepted)
            fixed = [name for name in changed if name not in self.editable and now[name] != before[name]]
            if fixed:
                raise TypeError(f"{type(self).__name__}: a hook may not change {', '.join(fixed)}")
        return accepted

    def refuses(self, verb: str) -> str | None:
        """Return why this payload does not accept a verb that its point allows, or ``None``."""
        return None

    def keys(self) -> tuple[str, ...]:
        """Return the field names, so that ``dict(payload)`` is a plain, mutable copy."""
        return self.__struct_fields__

    def __getitem__(self, name: str) -> Any:
        if not isinstance(name, str):
            fields = ", ".join(self.__struct_fields__)
            raise TypeError(f"{type(self).__name__} has no items at positions, only fields: {fields}")
        if name not in self.__struct_fields__:
            raise KeyError(f"{name!r}.{did_you_mean(name, self.__struct_fields__)}")
        return plain(msgspec.structs.asdict(self)[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.__struct_fields__)

    def __contains__(self, name: object) -> bool:
        return name in self.__struct_fields__

    def to_json(self) -> bytes:
        """Return this value as JSON."""
        return encoded(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Return the value that :meth:`to_json` wrote."""
        return msgspec.json.decode(data, type=cls)

    def _seal(self, name: str, how: Callable[[Any], Any]) -> None:
        msgspec.structs.force_setattr(self, name, how(getattr(self, name)))
