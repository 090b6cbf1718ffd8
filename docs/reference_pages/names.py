"""Generate `reference/modules/`: a page for each public module with its names, and a list of all modules."""

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache, partial
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

from hookline import Event
from hookline.hooks._catalog import BUILTINS
from hookline.payloads import Frozen
from hookline.points import POINTS, Point
from hookline.tools import Tool

from .markdown import GENERATED, block, call, cell, listed, more, signature, summary, table

MODULES = {
    "agents": "agents, runs, sessions and contexts",
    "hooks": "decorators and results for hooks, and the built-in hooks",
    "points": "every point at which hooks run, and the class to declare your own",
    "payloads": "payloads that hooks receive, and the values in them",
    "events": "events that a run emits",
    "errors": "errors of runs and hooks; those of a feature are in its module",
    "tools": "tools for agents, and the decorator to write your own",
    "models": "models, scripted ones, and the errors of providers",
    "plugins": "hooks and tools that are installed and enabled by name",
    "stores": "persistent data: sessions, memory, tickets, approvals, runs, the audit log",
    "channels": "chat channels, and the gateway that connects them to an agent",
    "teams": "subagents and personalities",
    "server": "agents over HTTP",
    "config": "settings",
    "tape": "tapes: recording runs so that they can be replayed",
    "records": "records of runs, and reading them",
    "backtest": "other rules on recorded runs, and what no rule looks at",
    "suggest": "rules proposed from recorded runs",
    "explain": "what happened in a recorded run, and how two runs differ",
    "importers": "logs of other systems as records",
    "adapters": "hooks in the loops of [other frameworks](../../guides/other-frameworks.md), a module for each",
    "adapters.agent_framework": "Microsoft Agent Framework",
    "adapters.agent_hooks": "interceptors of [AGENT-HOOKS](../../guides/agent-hooks.md)",
    "adapters.claude_code": "[hook scripts of Claude Code](../../guides/claude-code-hooks.md)",
    "adapters.google_adk": "Google ADK",
    "adapters.langchain": "LangChain",
    "adapters.openai_agents": "OpenAI Agents",
    "adapters.pydantic_ai": "pydantic-ai",
    "adapters.strands": "Strands",
    "testing": "helpers to [test your own hooks](../../guides/testing.md)",
    "compat": "names from other systems: see [coming from](../../coming-from/index.md)",
}
"""Every public module below `hookline`, with its description, in the order of the list."""

HEAD = f"""# Modules and names

`hookline` itself has the names that most programs use; each of them is also in its own module. Modules that are not
listed here are not public. {GENERATED}

"""
CONSTANTS = {
    "DIFF_ASSETS": "The style sheets and scripts that a page with `diff_fragment` needs.",
    "Deliver": "The function that a channel calls with each message; see `Channel`.",
    "EXPLAIN_ASSETS": "The style sheets and scripts that a page with `explain_fragment` needs.",
    "FINISH_REASONS": "The reasons why a model stops; each reply has one of them.",
    "HOOKLINE_API": "The version of the plugin API; a manifest names it as `api`.",
    "POINTS": "Every declared point by name, in the order of the reference.",
    "SIGNS": "The signs of the hook line by the state of a gate, such as `passed` or `blocked`.",
    "SECRET_FILES": "Globs of files that usually contain secrets; `PathGuard` and `TerminalGuard` use them.",
    "Sink": "A function that is called with each event.",
}
TOOLS = "A tool."


def pages() -> dict[str, Callable[[str], str]]:
    """Return the functions that return the pages, by path in `docs`."""
    made: dict[str, Callable[[str], str]] = {"reference/modules/index.md": lambda _: _index()}
    for name in MODULES:
        made[f"reference/modules/{_file(name)}"] = partial(_page, name)
    return made


def _file(module: str) -> str:
    return f"{module.replace('.', '-')}.md"


@cache
def _homes() -> dict[str, str]:
    """Return the module that describes each name. Two adapters may have classes of the same name."""
    modules = {name: import_module(f"hookline.{name}") for name in reversed(MODULES)}
    return {name: module for module in modules for name in modules[module].__all__ if "." not in module}


def _index() -> str:
    root = import_module("hookline")
    rows = [
        (f"[`hookline.{name}`]({_file(name)})", said, str(len(import_module(f"hookline.{name}").__all__)))
        for name, said in MODULES.items()
    ]
    text = HEAD + table(("module", "contents", "names"), rows) + "\n## hookline\n\n"
    homes, said = _homes(), []
    for name in sorted(root.__all__, key=str.lower):
        value = getattr(root, name)
        place = _page_of(name, value) or f"{_file(homes[name])}#{name.lower()}"
        said.append((f"[`{name}`]({place})", _about(name, value)))
    return text + table(("name", ""), said)


def _about(name: str, value: Any) -> str:
    if isinstance(value, Point):
        return f"a point, with {_article(value.payload.__name__)}"
    return cell(CONSTANTS.get(name) or summary(value))


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIO' else 'a'} `{name}`"


def _page(name: str, _: str) -> str:
    """Return the page of a module."""
    module, homes = import_module(f"hookline.{name}"), _homes()
    text = f"# hookline.{name}\n\n{summary(module)}\n"
    listed_here = [each for each in sorted(module.__all__, key=str.lower) if homes.get(each, name) == name]
    elsewhere = {
        each: _page_of(each, getattr(module, each)) or f"{_file(homes[each])}#{each.lower()}"
        for each in sorted(module.__all__, key=str.lower)
        if _page_of(each, getattr(module, each)) or each not in listed_here
    }
    if elsewhere:
        text += "\nOn other pages: " + ", ".join(f"[`{each}`]({place})" for each, place in elsewhere.items()) + ".\n"
    for each in listed_here:
        if each not in elsewhere:
            text += _section(each, getattr(module, each))
    return text


def _page_of(name: str, value: Any) -> str:
    """Return the place of a name that another page of the reference describes; empty if its module's page does."""
    if isinstance(value, Point):
        return f"../points.md#{value}"
    if BUILTINS.get(name):
        return f"../hooks/{BUILTINS[name]}.md"
    if _is(value, Event) and value is not Event:
        return f"../events.md#{name.lower()}"
    points = [point for point in POINTS.values() if value in (point.payload, point.result)]
    return f"../points.md#{points[0]}" if points else ""


def _is(value: object, kind: type) -> bool:
    return isinstance(value, type) and issubclass(value, kind)


def _section(name: str, value: Any) -> str:
    text = f"\n## {name}\n\n"
    usual = getattr(value, "__name__", name)
    if usual != name and name in import_module("hookline.compat").__all__:
        return f"{text}Another name of [`{usual}`]({_file(_homes()[usual])}#{usual.lower()}).\n"
    if name in CONSTANTS:
        return f"{text}{CONSTANTS[name]}\n"
    if isinstance(value, Tool):
        return f"{text}{TOOLS} {summary(value)}\n"
    if get_origin(value) is Literal:
        return f"{text}One of {', '.join(f'`{choice}`' for choice in get_args(value))}.\n"
    if _is(value, Enum):
        return f"{text}{summary(value)}\n\n" + "".join(f"- `{item.name}`: `{item.value}`\n" for item in value)
    exception = _is(value, BaseException)
    kind = (
        "exception" if exception else "class" if isinstance(value, type) else "async def" if _is_async(value) else "def"
    )
    protocol = getattr(value, "_is_protocol", False)
    text += block(
        f"{kind} {name}" if protocol or (exception and not signature(value)) else f"{kind} {call(name, value)}", "py"
    )
    kinds = [base.__name__ for base in value.__bases__ if base is not Exception] if exception else []
    text += f"\n{summary(value)}{_kinds(kinds)}\n" + (f"\n{more(value)}\n" if more(value) else "")
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
    """Yield the public methods and properties of a class with their parameters and descriptions."""
    inherited = (BaseException, Frozen, dict, list, str)
    for owner in reversed([c for c in kind.__mro__ if c.__module__.startswith("hookline.") and c not in inherited]):
        for name, member in vars(owner).items():
            if name.startswith("_") or (owner is Event and kind is not Event):
                continue
            found = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if isinstance(found, property) and found.fget is not None and found.fget.__doc__:
                yield name, "", summary(found.fget)
            elif inspect.isfunction(found) and found.__doc__ and "For the loop" not in found.__doc__:
                inside = signature(found, types=False, own=isinstance(member, staticmethod))
                yield name, f"({inside})", ("Async. " if _is_async(found) else "") + summary(found)
