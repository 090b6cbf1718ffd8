"""Classes that are subclasses of a framework's class only when they are used."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def with_base(cls: type[T], base: type[Any]) -> type[T]:
    """Return the subclass of both classes.

    A framework accepts only instances of its own class, but Hookline must be importable without the framework. So the
    class of an adapter is an ordinary one, and its ``__new__`` makes an instance of this subclass.
    """
    return type(cls.__name__, (cls, base), {"__module__": cls.__module__, "__doc__": cls.__doc__})
