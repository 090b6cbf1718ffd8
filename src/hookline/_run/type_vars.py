"""The type variables of agents and contexts: the type of ``ctx.deps``, and of ``result.output``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # defaults of type variables come with Python 3.13; type checkers know them from here
    from typing_extensions import TypeVar

    DepsT = TypeVar("DepsT", default=object)
    OutputT = TypeVar("OutputT", default=str)
else:
    from typing import TypeVar

    DepsT = TypeVar("DepsT")
    OutputT = TypeVar("OutputT")
