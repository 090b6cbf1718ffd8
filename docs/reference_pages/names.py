"""`reference/names.md`: every public name."""

import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import hookline
import hookline.points
from hookline import Event, testing
from hookline.api import _LATER
from hookline.hooks.catalogue import BUILTINS
from hookline.payloads import Frozen
from hookline.points import Point
from hookline.tools import Tool

from .markdown import GENERATED, block, call, listed, more, signature, told

HEAD = f"""# Names

Every name that `from hookline import ...` knows, by where it belongs, and those of `hookline.testing`. {GENERATED}

"""

GROUPS = {
    "_run": "Agents and runs",
    "_kernel": "Hooks, points and what travels through them",
    "models": "Models",
    "providers": "Models",
    "tools": "Tools",
    "hooks": "Beside the built-in hooks",
    "stores": "Stores",
    "plugins": "Plugins",
    "channels": "Channels",
    "_web": "Server",
    "server": "Server",
    "teams": "Teams",
    "tape": "Tapes",
    "_base": "Frozen data and events",
    "reference": "Hooks, points and what travels through them",
}
CONSTANTS = {
    "FINISH_REASONS": "Why a model stopped: each reply has one of these.",
    "HOOKLINE_API": "The version of what plugins are given; a manifest names it as `api`.",
    "POINTS": "Every declared point by its name, in the order of the table.",
}
TOOLS = "A tool, ready to be given to an agent."
OTHERS = {"AgentEvent": "Event", "LLMAgent": "Agent", "ScriptedLLM": "ScriptedModel"}
"""Second names, and what they stand for."""


def page(_: str) -> str:
    """The page."""
    groups: dict[str, list[str]] = {}
    points, payloads, events, builtins = [], [], [], []
    for name in sorted(hookline.__all__, key=str.lower):
        value = getattr(hookline, name)
        if isinstance(value, Point):
            points.append(name)
        elif name in BUILTINS:
            builtins.append(name)
        elif _is(value, Event) and value is not Event:
            events.append(name)
        elif _payload_of(value):
            payloads.append(name)
        else:
            groups.setdefault(GROUPS[_part(name, value)], []).append(name)
    text = HEAD + _elsewhere(points, payloads, events, builtins)
    for title in dict.fromkeys(GROUPS.values()):
        if title in groups:
            text += f"\n## {title}\n" + "".join(_section(name, getattr(hookline, name)) for name in groups[title])
    text += "\n## hookline.testing\n\nTo test your own hooks: see [testing](../guides/testing.md).\n"
    return text + "".join(
        _section(name, getattr(testing, name)) for name in testing.__all__ if name not in hookline.__all__
    )


def _is(value: object, kind: type) -> bool:
    return isinstance(value, type) and issubclass(value, kind)


def _part(name: str, value: Any) -> str:
    module = _LATER[name].removeprefix(".") if name in _LATER else getattr(value, "__module__", "")
    if name in ("POINTS", "FINISH_REASONS", "HOOKLINE_API"):
        module = {"POINTS": "_kernel", "FINISH_REASONS": "models", "HOOKLINE_API": "plugins"}[name]
    return str(module).removeprefix("hookline.").split(".")[0]


def _payload_of(value: Any) -> list[Point[Any]]:
    return [point for point in hookline.points.POINTS.values() if value in (point.payload, point.result)]


def _elsewhere(points: list[str], payloads: list[str], events: list[str], builtins: list[str]) -> str:
    rows = [
        ("points", ", ".join(f"[`{name}`](points.md#{getattr(hookline, name)})" for name in points)),
        ("payloads", ", ".join(f"[`{n}`](points.md#{_payload_of(getattr(hookline, n))[0]})" for n in payloads)),
        ("events", ", ".join(f"[`{name}`]({_event_page(name)})" for name in events)),
        ("built-in hooks", ", ".join(f"[`{name}`](hooks/{BUILTINS[name]}.md)" for name in builtins)),
    ]
    return "".join(f"## {title.capitalize()}\n\n{names}\n\n" for title, names in rows).rstrip() + "\n"


def _event_page(name: str) -> str:
    return f"events.md#{name.lower()}"


def _section(name: str, value: Any) -> str:
    text = f"\n### {name}\n\n"
    if name in OTHERS and OTHERS[name] != name and getattr(value, "__name__", name) == OTHERS[name]:
        return f"{text}Another name of [`{OTHERS[name]}`](#{OTHERS[name].lower()}).\n"
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
