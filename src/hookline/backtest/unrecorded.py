"""Find what the code of a hook reads that no record contains: the clock, chance, the environment, existing files.

The audit hook of Python (:mod:`hookline.backtest.confinement`) sees files that are opened, but not these calls. So the
code of the hook itself is searched for them. What the functions that it calls do is not seen.
"""

from __future__ import annotations

import datetime
import os
import random
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping
from inspect import ismodule
from types import CodeType
from typing import Any

from .._kernel.hook_code import code_of, mentions

_CLOCK = "the clock of this computer (ctx.clock has the recorded time)"
_CHANCE = "random numbers"
_ENVIRONMENT = "the environment"
_FILES = "which files exist"
_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "localtime", "gmtime")
_ATTRIBUTES: Mapping[Any, Mapping[str, str]] = {
    time: dict.fromkeys(_CLOCKS, _CLOCK),
    datetime.datetime: dict.fromkeys(("now", "utcnow", "today"), _CLOCK),
    datetime.date: {"today": _CLOCK},
    random: dict.fromkeys(vars(random), _CHANCE),
    secrets: dict.fromkeys(vars(secrets), _CHANCE),
    uuid: dict.fromkeys(("uuid1", "uuid4"), _CHANCE),
    os: {"environ": _ENVIRONMENT, "getenv": _ENVIRONMENT, "urandom": _CHANCE}
    | dict.fromkeys(("stat", "access", "listdir", "scandir"), _FILES),
    os.path: dict.fromkeys(("exists", "isfile", "isdir", "getsize", "getmtime"), _FILES),
}
"""Modules and classes, and what their attributes read."""
_METHODS = dict.fromkeys(("exists", "is_file", "is_dir", "iterdir"), _FILES)
"""Methods of paths. The object that they belong to is not known."""


def unrecorded_reads(hook: Any) -> tuple[str, ...]:
    """Return what the code of a hook reads that is not recorded. Built-in hooks use the clock of the context.

    Example::

        @guard(BEFORE_TOOL)
        def office_hours(ctx, request):
            return HookResult.block("closed") if time.localtime().tm_hour > 18 else None

        unrecorded_reads(office_hours)  # ("the clock of this computer (ctx.clock has the recorded time)",)
    """
    function = code_of(hook)
    if function is None or str(function.__module__).partition(".")[0] == "hookline":
        return ()
    return tuple(dict.fromkeys(_reads(function.__code__, function.__globals__)))


def _reads(code: CodeType, scope: Mapping[str, Any]) -> Iterator[str]:
    for value, name in mentions(code, scope):
        if not name:
            yield from _read_of(value)
        elif value is None and name in _METHODS:
            yield _METHODS[name]
        elif value is not None and (what := _ATTRIBUTES.get(value, {}).get(name)) is not None:
            yield what


def _read_of(value: Any) -> Iterator[str]:
    """Yield what an imported function or object reads, as in ``from time import time``."""
    name = getattr(value, "__name__", "") if value is not os.environ else "environ"
    for home, attributes in _ATTRIBUTES.items():
        if name in attributes and getattr(home, name, None) is value and not ismodule(value):
            yield attributes[name]
