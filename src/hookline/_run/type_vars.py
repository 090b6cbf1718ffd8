"""The type variables of agents and contexts: the type of ``ctx.deps``, and of ``result.output``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # defaults of type variables come with Python 3.13; type checkers know them from here
    from typing_extensions import TypeVar

    DepsT = TypeVar("DepsT", default=object)
    DepsT_co = TypeVar("DepsT_co", default=object, covariant=True)
    OutputT = TypeVar("OutputT", default=str)
else:
    from typing import TypeVar

    DepsT = TypeVar("DepsT")
    DepsT_co = TypeVar("DepsT_co", covariant=True)
    OutputT = TypeVar("OutputT")
