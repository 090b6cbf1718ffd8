"""Decide what a request says plainly: values of enumerations, switches, and which of two opposite tools.

A very small model confuses opposites: asked to turn off the lights, it writes "on"; asked to unlock a door, it calls
the tool that locks it. So a value that the request names decides, and the opposite of one rules it out. If that leaves
more than one value of a required parameter, the user is asked, because a guess would be wrong too often.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..._base.frozen import json_text
from ..._kernel.payloads import ModelRequest
from ..._kernel.values import Message, ToolSpec
from ...tools.arguments import is_written_freely
from .grammar_schemas import arguments_schema, first_sentence, simple_schema

_OPPOSITES = """
on/off open/close,shut lock/unlock start/stop begin/end,finish enable/disable activate/deactivate up/down left/right
in/out add/remove increase/decrease,reduce raise/lower show/hide mute/unmute allow/block,deny,forbid,disallow
accept/reject,decline approve/deny,reject connect/disconnect buy/sell push/pull install/uninstall arm/disarm
engage/disengage like/dislike,unlike mount/unmount,dismount agree/disagree assemble/disassemble
pause/resume true/false high/low hot/cold heat/cool brighten/dim load/unload follow/unfollow subscribe/unsubscribe
archive/restore first/last public/private forward/back,backward before/after arrive/depart arrival/departure
entrance/exit inside/outside lend/borrow deposit/withdraw
"""
_PARTICLES = frozenset(("on", "off", "in", "out", "up", "down"))
"""Words that are often prepositions, and then name no value: "the lights on the terrace"."""

_VERBS = frozenset(("turn", "turned", "turning", "switch", "switched", "put", "power", "set", "keep", "leave", "go"))
_ARTICLES = frozenset(("a", "an", "the", "my", "your", "our", "his", "her", "its", "their", "this", "that", "these"))
_NO_VERBS = frozenset(("it", "its", "do", "der", "til"))
"""What is left of words that begin with "un" and negate nothing: unit, units, under, until; and undo, because requests
begin with "do"."""
_NOT = frozenset(("not", "never", "dont", "without"))
_TOKEN = re.compile(r"[^\W_]+(?:['\u2019]t\b)?|[.,;:!?]")
_QUESTION = re.compile(r"Which (?P<choice>.+): (?P<values>.+)\?|Is it (?P<switch>.+): yes or no\?")


def _pairs() -> dict[str, set[str]]:
    made: dict[str, set[str]] = {}
    for pair in _OPPOSITES.split():
        one, _, others = pair.partition("/")
        for other in others.split(","):
            made.setdefault(one, set()).add(other)
            made.setdefault(other, set()).add(one)
    return made


_OPPOSITE = _pairs()


def _words(text: str) -> list[str]:
    """Return the words of a name: ``turnOn_lights`` has three."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", text).casefold().split()


def _forms(word: str) -> set[str]:
    """Return the inflected forms of an English word, and those of the word that it may be a form of."""
    bases = {word}
    for ending in ("ing", "ed", "d", "es", "s"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= 3:
            bases |= {base, base + "e", base[:-1] if base[-1] == base[-2] else base}
    made = set(bases)
    for base in bases:
        stem = base.removesuffix("e")
        made |= {base + "s", base + "es", base + "ed", base + "d", stem + "ing", stem + "ed"}
        made |= {base + base[-1] + "ing", base + base[-1] + "ed"}
    return made


class RequestWords:
    """The words of a request, with the question whether they name something.

    Example::

        >>> RequestWords("Please turn the lights off.").choose(["on", "off"])
        ['off']
        >>> RequestWords("Unlock the door.").choose(["lock", "open"])
        ['open']
    """

    def __init__(self, text: str) -> None:
        self._written = _TOKEN.findall(text)
        self._tokens = [token.casefold().replace("\u2019", "'") for token in self._written]

    def choose(self, values: Sequence[Any]) -> list[Any]:
        """Return the values that the request leaves: those that it names, or those whose opposite it does not name."""
        places = {index: self._places(_words(str(value))) for index, value in enumerate(values)}
        named = [index for index, found in places.items() if found]
        if any(self._is_negated(at) for index in named for at in places[index]):
            return list(values)
        inner = {
            a for a in named for b in named if a != b and set(_words(str(values[a]))) < set(_words(str(values[b])))
        }
        left = [index for index in named if index not in inner]
        if not left:
            left = [index for index, value in enumerate(values) if not self.names_opposite(_words(str(value)))]
        return [values[index] for index in left] or list(values)

    def switch(self, name: str) -> bool | None:
        """Return the value of a parameter that is true or false; ``None`` if the request does not say it."""
        words = _words(" ".join(_words(name)).removeprefix("is ").removeprefix("has "))
        places = self._places(words)
        if places:
            after = self._tokens[places[0] + len(words) : places[0] + len(words) + 1]
            if after in (["yes"], ["no"]):
                return after == ["yes"]
            return not any(self._is_negated(at) or self._tokens[at - 1 : at] == ["no"] for at in places)
        return False if self.names_opposite(words) else None

    def names_opposite(self, words: Iterable[str]) -> bool:
        """Whether the request names the opposite of one of these words, and not the word itself."""
        return any(
            not self._places([word]) and any(self._places([other]) for other in opposites_of(word)) for word in words
        )

    def _places(self, words: Sequence[str]) -> list[int]:
        """Return the positions at which these words stand, in any inflected form."""
        forms = [_forms(word) for word in words]
        return [
            at
            for at in range(len(self._tokens) - len(words) + 1)
            if words
            and all(token in each for token, each in zip(self._tokens[at:], forms, strict=False))
            and not (len(words) == 1 and self._is_preposition(at))
        ]

    def _is_preposition(self, at: int) -> bool:
        if self._tokens[at] not in _PARTICLES or (at and self._tokens[at - 1] in _VERBS):
            return False
        after = self._written[at + 1 : at + 2]
        return bool(after) and (after[0].casefold() in _ARTICLES or after[0][0].isupper() or after[0].isdigit())

    def _is_negated(self, at: int) -> bool:
        """Whether a word such as "not" stands before a place in the same clause."""
        for word in reversed(self._tokens[:at]):
            if not word[0].isalnum():
                return False
            if word in _NOT or word.endswith("n't"):
                return True
        return False


def opposites_of(word: str) -> set[str]:
    """Return the plain opposites of a word: those of a list, and those with the prefix "un" or "dis".

    Words that begin with "dis" are in the list, because "discard" is not the opposite of "card".
    """
    known = {other for form in _forms(word) for other in _OPPOSITE.get(form, ())}
    base = word.removeprefix("un")
    stripped = {base} if base != word and base not in _NO_VERBS else set[str]()
    return known | stripped | {f"un{word}", f"dis{word}"}


def opposite_words(tool: ToolSpec, asked: str) -> set[str]:
    """Return the opposites of words in a tool's name that a request names instead, up to a colon or quotation mark."""
    command = RequestWords(re.split(r"[:\"“”«»]", asked, maxsplit=1)[0])
    words = _words(tool.name)
    meant = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word not in _PARTICLES or before in _VERBS or word == "off" or (word == "on" and word == words[-1])
    ]
    return {other for word in meant if command.names_opposite([word]) for other in opposites_of(word)}


def chosen_schema(name: str, schema: Mapping[str, Any], asked: RequestWords) -> Mapping[str, Any] | None:
    """Return the schema of a parameter with the values that a request leaves; ``None`` if it says nothing about them.

    Only for enumerations and switches: other schemas are returned as they are.
    """
    if values := schema.get("enum"):
        left = asked.choose(values)
        return None if len(left) == len(values) > 1 else {"enum": left}
    if schema.get("type") == "boolean":
        value = asked.switch(name)
        return None if value is None else {"const": value}
    return schema


def possible(request: ModelRequest) -> ModelRequest:
    """Return a request without the tools that do the opposite of what the user asks for."""
    if request.tool_choice == "required":
        return request
    asked = last_request(request.messages)
    tools = [tool for tool in request.tools if not opposite_words(tool, asked)]
    return request if len(tools) == len(request.tools) else request.replace(tools=tools)


def refusal(request: ModelRequest, name: str) -> str:
    """Return the reply to a request for a tool that does the opposite; empty if another tool does what is asked."""
    asked = last_request(request.messages)
    (tool,) = (each for each in request.tools if each.name == name)
    forms = {form for word in opposite_words(tool, asked) for form in _forms(word)}
    for other in possible(request).tools:
        said = f"{other.name} {other.description} {json_text(arguments_schema(other))}"
        if forms & set(_words(said)):
            return ""
    return f"I have no tool for that, only one for the opposite: {first_sentence(tool)}." if forms else ""


def last_request(messages: Sequence[Message]) -> str:
    """Return the last message of the user."""
    return next((message.content for message in reversed(messages) if message.role == "user"), "")


def open_question(request: ModelRequest, tool: str, messages: Sequence[Message]) -> str:
    """Return the question for a required choice that a request for a tool leaves open; empty if there is none."""
    (spec,) = (each for each in request.tools if each.name == tool)
    full = arguments_schema(spec)
    schema, words = simple_schema(full), RequestWords(last_request(messages))
    for name in schema.get("required", ()):
        plain = schema["properties"][name]
        if is_written_freely(name, full["properties"].get(name)) or not is_choice(plain):
            continue
        called = " ".join(_words(name)).removeprefix("is ")
        chosen = chosen_schema(name, plain, words)
        if plain.get("type") == "boolean" and chosen is None:
            return f"Is it {called}: yes or no?"
        left = [str(value) for value in (chosen or plain).get("enum", ())]
        if len(left) > 1 and (chosen is None or _contradict(left)):
            return f"Which {called}: {', '.join(left[:-1])} or {left[-1]}?"
    return ""


def is_choice(schema: Mapping[str, Any]) -> bool:
    """Whether a schema allows a few values only."""
    return len(schema.get("enum", ())) > 1 or schema.get("type") == "boolean"


def _contradict(values: Sequence[str]) -> bool:
    """Whether two of these values are opposites."""
    return any(opposites_of(one) & set(_words(other)) for value in values for one in _words(value) for other in values)


def with_answer(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages in which the answer to an open question is part of the request before the question."""
    at = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
    if at < 2:
        return messages
    request, question, answer = messages[at - 2 : at + 1]
    asked = _QUESTION.fullmatch(question.content)
    if asked is None or (request.role, question.role) != ("user", "assistant"):
        return messages
    name, values = (
        asked["choice"] or asked["switch"],
        (asked["values"] or "yes or no").replace(" or ", ", ").split(", "),
    )
    if len(RequestWords(answer.content).choose(values)) == len(values):
        return messages  # it does not answer the question, so it is a new request
    whole = answer.replace(content=f"{request.content.rstrip(' .!?')}, {name} {answer.content}")
    return [*messages[: at - 2], whole, *messages[at + 1 :]]
