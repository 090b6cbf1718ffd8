"""Hookline's entries in the settings of a coding agent: find them, add them, and remove nothing else.

The settings are ``{"hooks": {EVENT: [{"hooks": [HANDLER]}]}}``, or with a handler in place of each group. Everything
else in the file belongs to the user or to the agent.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from .json_edit import JsonText, JsonTextError, Node

PLUGIN_MARK = "// Hookline in opencode"
"""The first words of the plugin for opencode."""


class Entry(NamedTuple):
    """A handler of Hookline in settings.

    Args:
        event: the agent's name of the event.
        group: the number of its group in the list of the event.
        number: its number in the group; -1 if there are no groups.
        handler: the handler.
        whole: the item of the list that it is in.
    """

    event: str
    group: int
    number: int
    handler: Mapping[str, Any]
    whole: Any


def is_own_command(command: object, agent: str) -> bool:
    """Return whether a command of a handler is ``hookline agent-hook`` for an agent, of any installation."""
    if not isinstance(command, str) or "agent-hook" not in command:
        return False
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    return "agent-hook" in words and ("--agent", agent) in pairwise(words)


def command_of(handler: Any) -> str:
    """Return the command of a handler, empty if it has none."""
    if not isinstance(handler, Mapping):
        return ""
    command = handler.get("command", handler.get("bash"))
    return command if isinstance(command, str) else ""


def own_entries(settings: Any, agent: str) -> list[Entry]:
    """Return the handlers of Hookline in settings."""
    hooks = settings.get("hooks") if isinstance(settings, Mapping) else None
    found = []
    for event, items in hooks.items() if isinstance(hooks, Mapping) else ():
        for group, item in enumerate(items if isinstance(items, list) else ()):
            inner = item.get("hooks") if isinstance(item, Mapping) else None
            handlers = [(-1, item)] if not isinstance(inner, list) else list(enumerate(inner))
            for number, handler in handlers:
                if is_own_command(command_of(handler), agent):
                    found.append(Entry(event, group, number, handler, item))
    return found


def has_all(text: JsonText, wanted: Mapping[str, Any], agent: str) -> bool:
    """Return whether settings contain exactly the wanted entries of Hookline."""
    plain = text.root.plain()
    found = [(entry.event, entry.whole) for entry in own_entries(plain, agent)]
    needed = [(event, item) for event, items in wanted["hooks"].items() for item in items]
    others = {key: value for key, value in wanted.items() if key != "hooks"}
    return (
        len(found) == len(needed)
        and all(entry in found for entry in needed)
        and all(plain.get(key) == value for key, value in others.items())
    )


def add_entries(text: JsonText, wanted: Mapping[str, Any]) -> None:
    """Add the wanted entries at the end of the lists of their events.

    Raises:
        JsonTextError: the settings have another form.
    """
    for key, value in wanted.items():
        node = text.node(key)
        if key != "hooks":
            if node is None:
                text.add_member((), key, value)
            elif node.plain() != value:
                raise JsonTextError(f"{key} is {json.dumps(node.plain())[:80]}, and only {json.dumps(value)} is known")
        elif node is None:
            text.add_member((), key, value, levels=2)
        elif not isinstance(node.value, dict):
            raise JsonTextError("hooks is not an object with a list for each event")
        else:
            for event, items in value.items():
                _add_event(text, event, items)


def _add_event(text: JsonText, event: str, items: list[Any]) -> None:
    node = text.node("hooks", event)
    if node is None:
        text.add_member(("hooks",), event, items, levels=1)
        return
    if not isinstance(node.value, list):
        raise JsonTextError(f"hooks.{event} is not a list")
    for item in items:
        text.add_item(("hooks", event), item)


def remove_entries(text: JsonText, agent: str) -> bool:
    """Remove Hookline's entries, and what holds nothing without them. Return whether there were any."""
    removed = False
    while (found := next(_own_nodes(text, agent), None)) is not None:
        removed = True
        for holder, child in found:  # from the inside to the outside, as long as nothing else is left
            if holder is text.root or not text.holds_only(holder, child):
                text.remove(holder, child)
                break
    return removed


def _own_nodes(text: JsonText, agent: str) -> Iterator[list[tuple[Node, Node]]]:
    """Return where each handler of Hookline is: what holds it, what holds that, up to the whole object."""
    hooks = text.node("hooks")
    for event in hooks.children if hooks is not None else ():
        for item in event.children:
            outer = [(event, item), (hooks, event), (text.root, hooks)]
            inner = item.get("hooks") if isinstance(item.value, dict) else None
            if inner is None or not isinstance(inner.value, list):
                if is_own_command(command_of(item.plain()), agent):
                    yield outer  # type: ignore[misc]
                continue
            for handler in inner.children:
                if is_own_command(command_of(handler.plain()), agent):
                    yield [(inner, handler), *outer]  # type: ignore[list-item]
