"""What makes values immutable: frozen JSON, an append-only history, and the base of all values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar, overload

import msgspec

from .names import nearest

T = TypeVar("T")

MAX_DEPTH = 200
_new_dict, _new_list = dict.__new__, list.__new__
_SCALARS = frozenset({str, int, float, bool, type(None)})


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError(
        f"{type(self).__name__} cannot be changed in place; "
        "make a changed copy (payload.replace(...), or dict(...)/list(...) of this)"
    )


class FrozenDict(dict[str, Any]):
    """A JSON object that cannot be changed; equal to the plain dict it was made from."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __new__(cls, *args: Any, **kwargs: Any) -> FrozenDict:
        """Frozen all the way down."""
        return freeze(dict(*args, **kwargs))  # type: ignore[no-any-return]

    def __init__(self, *_: object, **__: object) -> None:
        """Nothing: ``dict``'s own would change it in place."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return thaw(self)  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[dict[str, Any]]]:
        return freeze, (thaw(self),)


class FrozenList(list[Any]):
    """A JSON array that cannot be changed; equal to the plain list it was made from."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __new__(cls, *args: Any) -> FrozenList:
        """Frozen all the way down."""
        return freeze(list(*args))  # type: ignore[no-any-return]

    def __init__(self, *_: object) -> None:
        """Nothing: ``list``'s own would change it in place."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: object) -> list[Any]:
        return thaw(self)  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[list[Any]]]:
        return freeze, (thaw(self),)


def freeze(value: Any, _depth: int = 0) -> Any:
    """A frozen copy of a JSON value.

    Raises:
        TypeError: something in it is not JSON.
        ValueError: it is nested more than ``MAX_DEPTH`` levels deep.
    """
    kind = type(value)
    if kind in _SCALARS or kind is FrozenDict or kind is FrozenList:
        return value
    if _depth >= MAX_DEPTH:
        raise ValueError(f"JSON nested more than {MAX_DEPTH} levels deep")
    if kind is dict or isinstance(value, Mapping):
        frozen = freeze_flat(value)
        for key, item in value.items():
            if type(item) not in _SCALARS:
                dict.__setitem__(frozen, key, freeze(item, _depth + 1))
            if type(key) is not str:
                raise TypeError(f"JSON keys are strings, not {type(key).__name__} ({key!r})")
        return frozen
    if isinstance(value, (list, tuple)):
        items: FrozenList = _new_list(FrozenList)
        list.extend(items, [v if type(v) in _SCALARS else freeze(v, _depth + 1) for v in value])
        return items
    for plain_type in (str, int, float):  # enums and other subclasses, as what they are in JSON
        if isinstance(value, plain_type):
            return plain_type.__str__(value) if plain_type is str else plain_type(value)
    raise TypeError(f"{type(value).__name__} is not JSON (str, number, bool, None, list, dict)")


def freeze_flat(value: Mapping[str, Any]) -> FrozenDict:
    """``freeze`` for an object that is known to hold nothing but scalars."""
    frozen: FrozenDict = _new_dict(FrozenDict)
    dict.update(frozen, value)
    return frozen


def thaw(value: Any) -> Any:
    """A plain, mutable deep copy of a frozen JSON value."""
    if isinstance(value, dict):
        copy = value.copy()
        for key, item in value.items():
            if type(item) not in _SCALARS:
                copy[key] = thaw(item)
        return copy
    if isinstance(value, list):
        return [item if type(item) in _SCALARS else thaw(item) for item in value]
    return value


EMPTY: FrozenDict = freeze({})


def parse_object(value: object) -> tuple[FrozenDict, str | None]:
    """What was sent as a JSON object: the frozen object, or an empty one and the text that was none."""
    parsed = value
    try:
        if isinstance(value, str):
            parsed = msgspec.json.decode(value) if value.strip() else {}
        frozen = freeze({} if parsed is None else parsed)
    except (ValueError, TypeError, RecursionError):
        return EMPTY, value if isinstance(value, str) else f"<{type(value).__name__} that is not usable JSON>"
    if type(frozen) is FrozenDict:
        return frozen, None
    return EMPTY, value if isinstance(value, str) else json_text(frozen)


def scrub(value: Any) -> Any:
    """A JSON value in which text that is no valid Unicode (lone surrogates) is mended, so that it can be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {scrub(key): scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    return value


def json_text(value: Any) -> str:
    """Any JSON value as JSON text."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub(value)).decode()


def digest(value: Any) -> str:
    """A SHA-256 over a JSON value, whatever the order of its keys."""
    import hashlib

    try:
        data = msgspec.json.encode(value, order="sorted")
    except (UnicodeEncodeError, TypeError):  # text that is not valid, or a mapping of another kind
        data = msgspec.json.encode(scrub(value), order="sorted")
    return hashlib.sha256(data).hexdigest()


class History(Sequence[T], Generic[T]):
    """An immutable sequence whose ``plus`` does not copy what is already there.

    All histories grown from one another share one buffer and see only their own part of it.
    """

    __slots__ = ("_head", "_items", "_size")
    _head: tuple[T, ...]
    _items: list[T]
    _size: int

    def __new__(cls, items: Iterable[T] = ()) -> History[T]:
        """A history of these items; there is no ``__init__`` that could be called again."""
        new = super().__new__(cls)
        new._head, new._items = (), list(items)
        new._size = len(new._items)
        return new

    def plus(self, *items: T) -> History[T]:
        """This history with ``items`` after it."""
        buffer, size = self._items, self._size
        for item in items:
            if len(buffer) == size:
                buffer.append(item)
            # Another branch, or another thread, may have taken the place first: then copy.
            if buffer[size] is not item:
                buffer = [*buffer[:size], item]
            size += 1
        new: History[T] = object.__new__(History)
        new._head, new._items, new._size = self._head, buffer, size
        return new

    def after(self, *head: T) -> History[T]:
        """This history with ``head`` before it."""
        new: History[T] = object.__new__(History)
        new._head, new._items, new._size = (*head, *self._head), self._items, self._size
        return new

    def tail_after(self, other: Sequence[T]) -> tuple[T, ...] | None:
        """What comes after ``other``, if this was grown from it; else ``None``."""
        if not isinstance(other, History) or self._items is not other._items or self._head != other._head:
            return None
        return tuple(self._items[other._size : self._size]) if other._size <= self._size else None

    def __len__(self) -> int:
        return len(self._head) + self._size

    def __iter__(self) -> Iterator[T]:
        return chain(self._head, islice(self._items, self._size))

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
    """Items as a sequence that cannot be changed."""
    return items if type(items) is History else tuple(items)


def as_history(items: Sequence[Any]) -> History[Any]:
    """Items as an immutable history."""
    return items if type(items) is History else History(items)


class Growing(Generic[T]):
    """The growing end of a history: ``append`` is cheap, and ``view`` is what there is so far."""

    __slots__ = ("_items", "_size", "_view")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._size = len(self._items)
        self._view: History[T] | None = None

    def append(self, item: T) -> None:
        """Add one item; views made before do not change."""
        items, size = self._items, self._size
        if len(items) == size:
            items.append(item)
        if items[size] is not item:  # somebody grew a view on their own: keep out of their way
            self._items = [*items[:size], item]
        self._size, self._view = size + 1, None

    def view(self) -> History[T]:
        """All items so far."""
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

    try:  # the output of a run may be of any type that pydantic knows
        return to_jsonable_python(value, by_alias=True)
    except PydanticSerializationError:
        raise TypeError(f"{type(value).__name__} has no JSON form") from None


_json = msgspec.json.Encoder(enc_hook=_encode)


def plain(value: Any) -> Any:
    """A value as plain, mutable lists and dicts."""
    return _with_lists(msgspec.to_builtins(value, enc_hook=_encode))


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


@lru_cache(maxsize=256)
def _field_types(cls: type[Frozen]) -> dict[str, Any]:
    return {f.name: f.type for f in msgspec.structs.fields(cls)}


class Frozen(msgspec.Struct, frozen=True, gc=False):
    """The base of every value, payload and event: immutable, comparable, JSON both ways.

    Immutable values form no reference cycles, so the garbage collector need not look at them.
    """

    free: ClassVar[frozenset[str]] = frozenset()
    """The fields a hook may change; with none named, all."""

    def replace(self, changes: Mapping[str, Any] | None = None, /, **fields: Any) -> Self:
        """A changed copy, from keywords or a mapping such as ``dict(payload)``.

        Raises:
            TypeError: an unknown field, or a value of the wrong type.
        """
        types = _field_types(type(self))
        changed: dict[str, Any] = {}
        for name, value in {**(changes or {}), **fields}.items():
            if name not in types:
                raise TypeError(f"{type(self).__name__} has no field {name!r}.{nearest(name, types)}")
            try:
                if isinstance(value, History):  # checked like a list, but kept, so that it still shares its buffer
                    old = getattr(self, name)
                    tail = value.tail_after(old)
                    items = list(value) if tail is None else list(tail)
                    checked = msgspec.convert(items, types[name])
                    same = all(a is b for a, b in zip(items, checked, strict=True))
                    changed[name] = value if same else History(checked) if tail is None else old.plus(*checked)
                else:
                    changed[name] = msgspec.convert(value, types[name])
            except msgspec.ValidationError as error:
                raise TypeError(f"{type(self).__name__}.{name}: {error}") from None
        return msgspec.structs.replace(self, **changed)

    @classmethod
    def of(cls, value: object) -> Self:
        """``value`` itself if it is one of these, or one made of a mapping of its fields.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(value, Mapping):
            unknown = [name for name in value if name not in cls.__struct_fields__]
            if unknown:
                known = nearest(str(unknown[0]), cls.__struct_fields__)
                raise TypeError(f"{cls.__name__} has no field {unknown[0]!r}.{known}")
            try:
                return msgspec.convert(value, cls)
            except msgspec.ValidationError as error:
                raise TypeError(f"{cls.__name__}: {error}") from None
        if not isinstance(value, cls):
            raise TypeError(f"expected a {cls.__name__}, not {type(value).__name__}")
        return value

    def accept(self, value: object) -> Self:
        """``value``, given back by a hook, as a checked copy of this with only free fields changed.

        Raises:
            TypeError: it is no such payload, or changes a field that hooks may not change.
        """
        names = self.__struct_fields__
        if type(value) is type(self):
            given = {name: getattr(value, name) for name in names}
        elif isinstance(value, Mapping):
            given = dict(value)
        else:
            raise TypeError(f"{type(value).__name__} is not a {type(self).__name__}")
        new = self.replace({n: v for n, v in given.items() if n not in names or v is not getattr(self, n)})
        moved = [n for n in names if self.free and n not in self.free and getattr(new, n) != getattr(self, n)]
        if moved:
            raise TypeError(f"{type(self).__name__}: a hook may not change {', '.join(moved)}")
        return new

    def refuses(self, verb: str) -> str | None:
        """Why this very payload does not take a verb that its point allows; ``None`` if it does."""
        return None

    def keys(self) -> tuple[str, ...]:
        """The field names, so that ``dict(payload)`` gives a plain, mutable copy."""
        return self.__struct_fields__

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(f"{name!r}.{nearest(name, self.__struct_fields__)}")
        return plain(getattr(self, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.__struct_fields__)

    def __contains__(self, name: object) -> bool:
        return name in self.__struct_fields__

    def to_json(self) -> bytes:
        """This value as JSON."""
        try:
            return _json.encode(self)
        except UnicodeEncodeError:
            return _json.encode(scrub(plain(self)))

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """The value that ``to_json`` wrote."""
        return msgspec.json.decode(data, type=cls)

    def _seal(self, name: str, how: Callable[[Any], Any]) -> None:
        msgspec.structs.force_setattr(self, name, how(getattr(self, name)))
