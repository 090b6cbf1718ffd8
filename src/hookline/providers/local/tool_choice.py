"""Choose the tools for a request by the likelihood of the request for each tool.

A very small model that is asked which tool to call chooses the last one in its prompt, even for a greeting. The reverse
question works nearly always: the user's words are most likely after the description of the tool that they are about
(a "noisy channel"; S. Min and others, 2022). The same figures, word by word, show which part of the request is about
another tool, and so how many calls it needs, and in which order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from ..._kernel.payloads import ModelRequest
from ..._kernel.values import Message, ToolSpec
from .grammar_schemas import arguments_schema, first_sentence
from .grounding import ConversationWords, needs_number

NO_TOOL = (
    "Answer a general question (question: what to know)",
    "Chat with the user (text: a greeting, a feeling or thanks)",
)
"""Subjects of requests that need no tool."""

CALL = 2.5
"""A tool is called if the log-likelihood of the request is higher for the tool than for a chat, by at least this."""

ANOTHER = 3.0
"""The same margin for a part of a request and an additional tool."""

_MAX_CALLS = 3
_MAX_TOOLS = 12
_MAX_TEXT = (
    400  # characters of a request that are scored, because the time grows with the length and the number of tools
)

Likelihood = Callable[[str, str], Sequence[float]]
"""Returns the log-likelihood of each word of a text after a prompt."""


class Planned(NamedTuple):
    """A tool to call, and the part of the request that is about it."""

    tool: str
    part: str


def named_tool(request: ModelRequest) -> str | None:
    """Return the one tool whose description the user repeats in a single clause, such as "Read a note: taxes"."""
    asked = [message.content for message in _until_asked(request)[-1:]]
    if not asked or re.search(r"[,.;?!]\s+\S|\b(?:and|then)\b", asked[0], re.IGNORECASE):
        return None
    named = [tool.name for tool in request.tools if _stems(first_sentence(tool)) <= _stems(asked[0])]
    return named[0] if len(named) == 1 else None


def _until_asked(request: ModelRequest) -> Sequence[Message]:
    """Return the messages up to the last one of the user."""
    asked = max((at for at, message in enumerate(request.messages) if message.role == "user"), default=-1)
    return request.messages[: asked + 1]


def planned_calls(request: ModelRequest, likelihood: Likelihood) -> list[Planned]:
    """Return the tools to call for the last message of the user, in order. None are needed for a chat."""
    before = _until_asked(request)  # the plan must stay the same when results arrive
    asked = before[-1].content if before else ""
    words = asked[:_MAX_TEXT].split()
    if not words:
        return []
    text = " ".join(words)
    must_call = request.tool_choice == "required"
    chats = [] if must_call else [likelihood(_prompt(about), text) for about in NO_TOOL]
    tools = {tool.name: likelihood(_prompt(_about(tool)), text) for tool in _nearest(request.tools, text)}
    names = plan(tools, chats)
    if names and not ConversationWords(before).numbers:  # a tool that needs one would get an invented number
        lacking = {tool.name for tool in request.tools if needs_number(tool)}
        possible = {name: row for name, row in tools.items() if name not in lacking}
        if names[0] in lacking and (possible or not must_call):
            names = plan(possible, chats) if possible else []
    if len(names) <= 1:
        return [Planned(name, asked) for name in names]
    ends = [*_borders(words, [tools[name] for name in names]), len(words)]
    return [
        Planned(name, " ".join(words[begin:end])) for name, begin, end in zip(names, [0, *ends], ends, strict=False)
    ]


def _nearest(tools: Sequence[ToolSpec], text: str) -> Sequence[ToolSpec]:
    """Return the tools whose descriptions share the most words with the request, because scoring a tool takes time."""
    words = _stems(text)
    ordered = sorted(tools, key=lambda tool: -len(words & _stems(f"{tool.name} {_about(tool)}")))
    return ordered[:_MAX_TOOLS]


def _stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"[^\W_]{3,}", text.casefold())}


def plan(tools: Mapping[str, Sequence[float]], chats: Sequence[Sequence[float]]) -> list[str]:
    """Return the tools to call, in order, from the likelihood of each word of a request for each tool and for chats.

    Without chats to compare with, there is always a call.

    Example::

        >>> plan({"weather": [-2.0, -1.0], "timer": [-6.0, -5.0]}, [[-4.0, -4.0]])
        ['weather']
    """
    best = max(tools, key=lambda name: sum(tools[name]))
    if chats and sum(tools[best]) - max(map(sum, chats)) < CALL:
        return []
    chosen = [best]
    while len(chosen) < min(_MAX_CALLS, len(tools), len(tools[best])):
        rest = [name for name in tools if name not in chosen]
        gains = {name: _best_part(tools[name], [*chats, *(tools[other] for other in chosen)])[0] for name in rest}
        another = max(gains, key=lambda name: gains[name])
        if gains[another] < ANOTHER:
            break
        chosen.append(another)
    if len(chosen) == 1:
        return chosen
    starts = {
        name: _best_part(tools[name], [*chats, *(tools[other] for other in chosen if other != name)])[1]
        for name in chosen
    }
    return sorted(chosen, key=lambda name: starts[name])


def _borders(words: Sequence[str], rows: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return the positions at which the next row begins, for the most likely division into clauses."""
    needed, places = len(rows) - 1, range(1, len(words))
    clauses = [at for at in places if words[at - 1][-1] in ",.;:?!" or words[at].casefold() in ("and", "then")]

    def total(borders: tuple[int, ...]) -> float:
        return sum(sum(row[a:b]) for row, a, b in zip(rows, (0, *borders), (*borders, len(words)), strict=True))

    return max(combinations(clauses if len(clauses) >= needed else places, needed), key=total)


def _best_part(these: Sequence[float], others: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the largest margin of one run of words over all other rows, and the position where the run begins."""
    best, begins, total, start = 0.0, 0, 0.0, 0
    for at, (this, *other) in enumerate(zip(these, *others, strict=True)):
        if total <= 0:
            total, start = 0.0, at
        total += this - max(other)
        if total > best:
            best, begins = total, start
    return best, begins


def _prompt(about: str) -> str:
    return f"Tool: {about}.\nThe user says:"


def _about(tool: ToolSpec) -> str:
    """Return a tool's first sentence, or its name, and its parameters."""
    first = first_sentence(tool)
    named = [
        f"{name}: {schema['description'].strip().rstrip('.')}" if _described(schema) else name.replace("_", " ")
        for name, schema in arguments_schema(tool).get("properties", {}).items()
    ]
    return f"{first} ({', '.join(named)})" if named else first


def _described(schema: object) -> bool:
    return isinstance(schema, Mapping) and isinstance(schema.get("description"), str)
