"""Arguments that note what is read of them.

A hook must not notice that it is watched, so the arguments remain a frozen dict with all its items. Every method of a
dict is noted here. Code in C can read a dict without its methods (``msgspec.json.encode``, ``dict.get(arguments,
…)``). It cannot be asked what it read, so while a hook runs, a call of such code counts as reading everything. The
functions of the standard library use the methods of a dict that has its own; those of other packages may not. Neither
can code in other threads be observed, so passing work to a thread counts as reading everything too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinMethodType, ClassMethodDescriptorType, FrameType, MethodDescriptorType
from typing import Any

from .._base.frozen import FrozenDict
from .context import RecordedState

_EVALUATE = frozenset(("eval", "exec"))
_HAND_OVER = frozenset((("_queue", "put"), ("_thread", "start_new_thread")))
_IN_C = (MethodDescriptorType, ClassMethodDescriptorType, BuiltinMethodType)
_FOLDER = f"{Path(__file__).parent}{os.sep}"
_CALLER = f"{_FOLDER}_coverage.py"
_IMPORT = "<frozen importlib"
_STATE = RecordedState.__getattribute__.__code__


class WatchedArguments(FrozenDict):
    """The arguments of a call, which note the names that were read.

    ``read`` are the arguments that were read by name. ``whole`` is true if all of them were read together: by iterating
    over them, comparing, copying or printing them. The number of arguments is not an argument: ``len`` is not noted.

    Example::

        arguments = watch({"path": "a.txt", "mode": "w"})
        arguments["path"]
        assert arguments.read == {"path"}
    """

    __slots__ = ("read", "whole")
    read: set[str]
    whole: bool

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return dict.__getitem__(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, and note its name."""
        self.read.add(name)
        return dict.get(self, name, default)

    def __contains__(self, name: object) -> bool:
        self.read.add(name)  # type: ignore[arg-type]
        return dict.__contains__(self, name)

    def __iter__(self) -> Iterator[str]:
        self.whole = True
        return dict.__iter__(self)

    def __reversed__(self) -> Iterator[str]:
        self.whole = True
        return dict.__reversed__(self)

    def keys(self) -> Any:
        """Return the names."""
        self.whole = True
        return dict.keys(self)

    def values(self) -> Any:
        """Return the values."""
        self.whole = True
        return dict.values(self)

    def items(self) -> Any:
        """Return the names and values."""
        self.whole = True
        return dict.items(self)

    def copy(self) -> dict[str, Any]:
        """Return a plain dict."""
        self.whole = True
        return dict.copy(self)

    def __eq__(self, other: object) -> bool:
        self.whole = True
        return dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        self.whole = True
        return dict.__ne__(self, other)

    def __or__(self, other: Any) -> Any:
        self.whole = True
        return dict.__or__(self, other)

    def __ror__(self, other: Any) -> Any:
        self.whole = True
        return dict.__ror__(self, other)

    def __repr__(self) -> str:
        self.whole = True
        return dict.__repr__(self)

    __hash__ = FrozenDict.__hash__


def watch(arguments: Mapping[str, Any]) -> WatchedArguments:
    """Return watched arguments with the same items."""
    watched: WatchedArguments = dict.__new__(WatchedArguments)
    dict.update(watched, arguments)
    watched.read, watched.whole = set(), False
    return watched


@contextmanager
def noting(arguments: WatchedArguments, *, threads: bool = True) -> Iterator[None]:
    """Note reads by code in C too, as long as this lasts.

    Args:
        arguments: the arguments.
        threads: whether passing work to another thread counts as reading everything.

    Example::

        with noting(request.arguments):
            guard(ctx, request)
    """

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if arguments.whole:
            return
        if event == "call" and frame.f_code is _STATE and frame.f_locals["name"] == "messages":
            arguments.whole = _is_of_hook(frame.f_back)  # the transcript contains the calls of the reply
        elif event == "c_call" and _may_read(function, arguments, threads=threads) and _is_of_hook(frame):
            arguments.whole = True

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def _may_read(function: Any, arguments: WatchedArguments, *, threads: bool) -> bool:
    """Whether a function in C may read the arguments without their methods, or where nobody sees it."""
    owner = getattr(function, "__self__", None)
    if owner is arguments:
        return True  # a method of dict, as in dict.get(arguments, "path")
    name = function.__name__
    home = function.__module__ or _defining_module(type(owner), name)
    package = home.partition(".")[0]
    if package not in sys.stdlib_module_names or name in _EVALUATE:
        return True
    return threads and (package, name) in _HAND_OVER


def _defining_module(kind: type, name: str) -> str:
    """Return the module of the class in C that defines a method; a subclass in Python may override it."""
    return next((base.__module__ for base in kind.__mro__ if isinstance(vars(base).get(name), _IN_C)), "")


def _is_of_hook(frame: FrameType | None) -> bool:
    """Whether code is called by the hook, and neither by the context of the backtest nor by an import."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith((_FOLDER, _IMPORT)):
            return file == _CALLER
        frame = frame.f_back
    return True
