"""`reference/names.md`: every public name, by the module it is imported from."""

import inspect
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

from hookline import Event
from hookline.hooks._catalog import BUILTINS
from hookline.payloads import Frozen
from hookline.points import POINTS, Point
from hookline.tools import Tool

from .markdown import GENERATED, block, call, listed, more, signature, table, told

MODULES = {
    "agents": "agents, and what belongs to one run",
    "hooks": "what hooks are written with, and the built-in hooks",
    "points": "every point where a hook can take part, and the class to declare your own",
    "payloads": "what hooks receive, and the values in it",
    "events": "what a run reports",
    "errors": "errors of runs and hooks; those of a feature are in its module",
    "tools": "tools to give to an agent, and what makes them",
    "models": "models, scripted ones, and the errors of providers",
    "plugins": "hooks and tools that are installed and switched on by name",
    "stores": "what outlives a run: sessions, memory, tickets, approvals, runs, the audit log",
    "channels": "messages in and out, and the gateway between them and an agent",
    "teams": "subagents and personalities",
    "server": "agents over HTTP",
    "config": "settings of a program that runs agents",
    "tape": "recordings of runs, and replaying them",
    "testing": "to [test your own hooks](../guides/testing.md)",
    "compat": "names that only one other system uses: see [coming from](../coming-from/index.md)",
}
"""Every public module below `hookline`, in the order they are shown, with what is in it."""

HEAD = f"""# Names

Every public name, by the module that it is imported from. `hookline` itself has those that most programs use; each of
them is in its own module too. Modules that are not listed here are not public. {GENERATED}

"""
CONSTANTS = {
    "FINISH_REASONS": "Why a model stopped: each reply has one of these.",
    "HOOKLINE_API": "The version of what plugins are given; a manifest names it as `api`.",
    "POINTS": "Every declared point by its name, in the order of the table.",
    "SECRET_FILES": "Globs of files that usually contain secrets; `PathGuard` and `TerminalGuard` use them.",
    "Sink": "What takes events: a function that is called with each of them.",
}
TOOLS = "A tool, ready to be given to an agent."


def page(_: str) -> str:
    """The page."""
    modules = {name: import_module(f"hookline.{name}") for name in MODULES}
    root = import_module("hookline")
    homes = {name: module for module in reversed(MODULES) for name in modules[module].__all__}
    rows = [("[`hookline`](#hookline)", "what most programs use", str(len(root.__all__)))]
    rows += [
        (f"[`hookline.{name}`](#hookline{name})", MODULES[name], str(len(modules[name].__all__))) for name in MODULES
    ]
    text = HEAD + table(("module", "what is in it", "names"), rows)
    text += "\n## hookline\n\n" + _links(root, root.__all__) + "\n"
    for name, module in modules.items():
        text += f"\n## hookline.{name}\n\n{told(module)}\n"
        listed_here = [each for each in sorted(module.__all__, key=str.lower) if homes[each] == name]
        elsewhere = [each for each in module.__all__ if _page_of(each, getattr(module, each)) or homes[each] != name]
        if elsewhere:
            text += "\n" + _links(module, elsewhere) + "\n"
        for each in listed_here:
            if each not in elsewhere:
                text += _section(each, getattr(module, each))
    return text


def _links(module: Any, names: list[str]) -> str:
    places = ((name, _page_of(name, getattr(module, name)) or f"#{name.lower()}") for name in names)
    return ", ".join(f"[`{name}`]({place})" for name, place in sorted(places, key=lambda pair: pair[0].lower()))


def _page_of(name: str, value: Any) -> str:
    """The place on another page that describes it; empty if this page does."""
    if isinstance(value, Point):
        return f"points.md#{value}"
    if BUILTINS.get(name):
        return f"hooks/{BUILTINS[name]}.md"
    if _is(value, Event) and value is not Event:
        return f"events.md#{name.lower()}"
    points = [point for point in POINTS.values() if value in (point.payload, point.result)]
    return f"points.md#{points[0]}" if points else ""


def _is(value: object, kind: type) -> bool:
    return isinstance(value, type) and issubclass(value, kind)


def _section(name: str, value: Any) -> str:
    text = f"\n### {name}\n\n"
    usual = getattr(value, "__name__", name)
    if usual != name and name in import_module("hookline.compat").__all__:
        return f"{text}Another name of [`{usual}`](#{usual.lower()}).\n"
    if name in CONSTANTS:
        return f"{text}{CONSTANTS[name]}\n"
    if isinstance(value, Tool):
        return f"{text}{TOOLS} {told(value)}\n"
    if get_origin(value) is Literal:
        return f"{text}One of {', '.join(f'`{choice}`' for choice in get_args(value))}.\n"
    if _is(value, Enum):
        return f"{text}{told(value)}\n\n" + "".join(f"- `{item.name}`: `{item.value}`\n" for item in value)
    exception = _is(value, BaseException)
    kind = (
        "exception" if exception else "class" if isinstance(value, type) else "async def" if _is_async(value) else "def"
    )
    protocol = getattr(value, "_is_protocol", False)
    text += block(
        f"{kind} {name}" if protocol or (exception and not signature(value)) else f"{kind} {call(name, value)}", "py"
    )
    kinds = [base.__name__ for base in value.__bases__ if base is not Exception] if exception else []
    text += f"\n{told(value)}{_kinds(kinds)}\n" + (f"\n{more(value)}\n" if more(value) else "")
    for heading, items in (("", listed(value)), ("Raises", listed(value, "Raises"))):
        title = f"\n{heading}:\n" if heading and items else ""
        text += title + ("\n" if items else "") + "".join(f"- `{item}`: {said}\n" for item, said in items.items())
    if isinstance(value, type):
        members = {name: f"- `{name}{inside}`: {said}\n" for name, inside, said in _members(value)}
        text += ("\nMembers:\n\n" if members else "") + "".join(members.values())
    return text


def _kinds(bases: list[str]) -> str:
    return f" It is a {' and a '.join(f'`{base}`' for base in bases)}." if bases else ""


def _is_async(value: Any) -> bool:
    return inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)


def _members(kind: type) -> Iterator[tuple[str, str, str]]:
    """The public methods and properties of a class, what each takes, and what it does."""
    inherited = (BaseException, Frozen, dict, list, str)
    for owner in reversed([c for c in kind.__mro__ if c.__module__.startswith("hookline.") and c not in inherited]):
        for name, member in vars(owner).items():
            if name.startswith("_") or (owner is Event and kind is not Event):
                continue
            found = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if isinstance(found, property) and found.fget is not None and found.fget.__doc__:
                yield name, "", told(found.fget)
            elif inspect.isfunction(found) and found.__doc__ and "For the loop" not in found.__doc__:
                inside = signature(found, types=False, own=isinstance(member, staticmethod))
                yield name, f"({inside})", ("Async. " if _is_async(found) else "") + told(found)
