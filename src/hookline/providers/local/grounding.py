"""Restrict arguments to values that occur in the conversation.

A very small model copies values from the examples in its prompt, or invents them. Here a grammar lets it write only
words and numbers of the user's messages and of tool results. The grammar is made here because a JSON schema cannot say
"any run of these words" in less than one alternative for each, nor how a word is divided into tokens: a model that has
to spell a word in unusual tokens loses its thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..._base.text import is_number
from ..._kernel.values import Message, ToolSpec
from ...tools.arguments import is_written_freely
from .choices import RequestWords, chosen_schema, is_choice
from .grammar_schemas import ARGUMENTS, LAYOUT, TOOL, arguments_schema, simple_schema

_MAX_WORDS = 300  # of the conversation, the newest first; every word is a rule of the grammar
_BREAK = re.compile(r'["“”«»()\[\]{}<>\n;?!|]|(?<=\w)(?::(?=\s)|,(?=\s+[a-z]))|(?<=\w{4})\.(?=\s|$)|(?<!\w)\'|\'(?!\w)')
_WORD = re.compile(r"\S+")
_EDGE = re.compile(r"[\w/~.@#$€£+%&*-].*[\w/%+#*]|\w", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.,:/-])-?\d{1,15}(?:\.\d{1,15})?(?=[a-z]{1,3}\b|(?![\w:/-]|\.\d))")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_EDGES = frozenset(("a", "an", "and", "at", "by", "for", "from", "in", "is", "my", "of", "or", "the", "to", "with"))
"""English words that cannot begin or end a value, unless they are capitalized as in a title."""

_NUMERALS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class ConversationWords:
    """The words and numbers of a conversation that may become arguments.

    Example::

        >>> ConversationWords([Message("user", "Set a timer of 5 minutes for the eggs.")]).numbers
        [5]
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.phrases: list[list[str]] = []
        self.numbers: list[int | float] = []
        asked = next((message.content for message in reversed(messages) if message.role == "user"), "")
        self.asked, self.asked_words = list(_digits(asked)), RequestWords(asked)
        left = _MAX_WORDS
        for text in _texts(messages):
            for phrase in _phrases(text):
                self.phrases.append(phrase[:left])
                left -= len(phrase[:left])
            self.numbers += [number for number in _numbers(text) if number not in self.numbers]
            if left <= 0:
                break
        self.phrases = [phrase for phrase in self.phrases if phrase]


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the user's texts and the values in tool results, the newest first."""
    for message in reversed(messages):
        if message.role == "user":
            yield message.content
        elif message.role == "tool":
            try:
                yield from _leaves(msgspec.json.decode(message.content))
            except (msgspec.DecodeError, RecursionError):
                yield message.content


def _leaves(value: Any) -> Iterator[str]:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _leaves(item)
    if isinstance(value, str):
        yield value
    elif is_number(value):
        yield str(value)


def _phrases(text: str) -> Iterator[list[str]]:
    """Yield the words of each part of a text between punctuation marks that cannot be inside a name or title."""
    for part in _BREAK.split(text):
        if words := _WORD.findall(part):
            yield words


def _trimmed(text: str) -> str:
    """Return a text without the punctuation around it."""
    found = _EDGE.search(text)
    return found[0] if found else ""


def _digits(text: str) -> Iterator[int | float]:
    for found in _NUMBER.finditer(_THOUSANDS.sub("", text)):
        yield float(found[0]) if "." in found[0] else int(found[0])


def _numbers(text: str) -> Iterator[int | float]:
    yield from _digits(text)
    for word in re.findall(r"[a-z]+", text.casefold()):
        if word in _NUMERALS:
            yield _NUMERALS.index(word)


Tokenize = Callable[[Sequence[str]], Sequence[Sequence[int]]]
"""Returns the tokens of each of several texts."""


def call_grammar(tool: ToolSpec, conversation: ConversationWords, tokenize: Tokenize) -> str:
    """Return a grammar for a call of a tool with arguments from the conversation.

    Text is any run of words, and a number one of the numbers. A value of an ``enum``, and true or false, is what the
    user's last message says (``choices.py``); an optional one is left out if it says nothing. A parameter with a
    ``format`` keeps it, and so does a structure. Parameters for text to write (``is_written_freely``) are free. An
    optional number is given if the user's last message has a number to spare for it, and left out otherwise. If the
    tool needs as many numbers as the message has, none of them is part of a text, and neither is the value of an
    ``enum`` that the message names once: "outside" of "an outside cabin" is not the name of a ship.
    """
    properties = arguments_schema(tool).get("properties", {})
    taken = {*_taken_numbers(tool, conversation), *_taken_values(tool, conversation)}
    names = {*properties, *re.findall(r"[^\W_]+", tool.name), *taken}
    phrases = [part for phrase in conversation.phrases for part in _between(phrase, names)]
    rules = _Rules(conversation, has_spans=bool(phrases))
    call = rules.call(tool)
    spans = _span_rules(phrases, tokenize) if phrases else []
    return "\n".join(["%llguidance {}", f"start: {call}", *rules.lines, *spans])


def needs_number(tool: ToolSpec) -> bool:
    """Whether a tool has a required number, which only the conversation can give."""
    return bool(_required_numbers(tool))


def _required_numbers(tool: ToolSpec) -> list[str]:
    schema = simple_schema(arguments_schema(tool))
    return [name for name in schema["required"] if _is_number(schema["properties"][name])]


def _taken_numbers(tool: ToolSpec, conversation: ConversationWords) -> Iterator[str]:
    """Yield the numbers of the user's last message, as written, if required numbers take all of them."""
    if len(conversation.asked) <= len(_required_numbers(tool)):
        yield from (f"{sign}{number}" for number in conversation.asked for sign in ("", "$", "€", "£"))


def _taken_values(tool: ToolSpec, conversation: ConversationWords) -> Iterator[str]:
    """Yield the words, as written, that name the value of an ``enum`` and stand just once in the conversation."""
    words = [_trimmed(word) for phrase in conversation.phrases for word in phrase]
    for schema in simple_schema(arguments_schema(tool))["properties"].values():
        values = schema.get("enum", ())
        chosen = conversation.asked_words.choose(values)
        if len(chosen) == 1 < len(values):
            found = [word for word in words if word.casefold() == str(chosen[0]).casefold()]
            yield from found if len(found) == 1 else ()


def _between(phrase: Sequence[str], names: Collection[str]) -> Iterator[list[str]]:
    """Yield the parts of a phrase between words that cannot be values: "south" of "the south branch" for a branch."""
    part: list[str] = []
    for word in [*phrase, None]:
        if word is not None and _trimmed(word) not in names:
            part.append(word)
            continue
        while part and not _can_end(part[-1]):
            part.pop()
        if part:
            yield part
        part = []


def _can_end(word: str) -> bool:
    """Whether a value may begin or end with a word."""
    return bool(_trimmed(word)) and word not in _EDGES


class _Rules:
    def __init__(self, conversation: ConversationWords, *, has_spans: bool) -> None:
        self.lines: list[str] = []
        self._conversation, self._has_spans = conversation, has_spans

    def call(self, tool: ToolSpec) -> str:
        begin = f'{{"{TOOL}": {json.dumps(tool.name, ensure_ascii=False)}, "{ARGUMENTS}": '
        return f"{_literal(begin)} {self._arguments(arguments_schema(tool))} {_literal('}')}"

    def _arguments(self, full: Mapping[str, Any]) -> str:
        schema = simple_schema(full)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if schema.get("additionalProperties") or not properties:
            return self._json(schema)
        needed, optional = list[str](), list[str]()
        spare = len(self._conversation.asked) - sum(_is_number(properties[name]) for name in required)
        for name, given_schema in properties.items():
            plain = given_schema if name in required else _not_null(given_schema)
            raw = full["properties"].get(name)
            free = is_written_freely(name, raw)
            given = name in required
            if not given and not free and _is_number(plain):
                spare -= 1
                if spare < 0:
                    continue
                given = True
            if not free and is_choice(plain):
                chosen = chosen_schema(name, plain, self._conversation.asked_words)
                if chosen is None and not given:
                    continue
                plain, given = chosen or plain, True
            value = self._json(plain) if free else self._value(plain)
            (needed if given else optional).append(f"{_literal(json.dumps(name, ensure_ascii=False) + ': ')} {value}")
        return f"{_literal('{')} {self._members(needed, optional)} {_literal('}')}"

    def _members(self, needed: list[str], optional: list[str]) -> str:
        """Return the rule for the members of an object, in order, with commas between the members that are present."""
        parts, comma = [f" {_literal(', ')} ".join(needed)], _literal(", ")
        if needed:
            parts += [f"({comma} {member})?" for member in optional]
        elif optional:
            starts = (
                " ".join([first, *(f"({comma} {member})?" for member in optional[index + 1 :])])
                for index, first in enumerate(optional)
            )
            parts.append(f"({' | '.join(starts)})?")
        return " ".join(parts)

    def _value(self, schema: Mapping[str, Any]) -> str:
        if schema.get("type") == "string" and "format" not in schema and self._has_spans:
            return f"{_literal(chr(34))} span {_literal(chr(34))}"
        if _is_number(schema):
            fitting = [number for number in self._conversation.numbers if _fits(number, schema)]
            return "(" + " | ".join(_literal(json.dumps(n)) for n in fitting) + ")" if fitting else self._json(schema)
        if schema.get("type") == "array" and "minItems" not in schema and "maxItems" not in schema:
            item = self._value(schema["items"])
            return f"{_literal('[')} ({item} ({_literal(', ')} {item})*)? {_literal(']')}"
        if "anyOf" in schema:
            return "(" + " | ".join(map(self._value, schema["anyOf"])) + ")"
        return self._json(schema)

    def _json(self, schema: Mapping[str, Any]) -> str:
        name = f"json{len(self.lines)}"
        text = json.dumps({**schema, "x-guidance": LAYOUT}, ensure_ascii=False)
        self.lines.append(f"{name}: %json {text}")
        return name


def _not_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema without ``null``: an optional parameter without a value is left out."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    return choices[0] if len(choices) == 1 else schema


def _is_number(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("integer", "number")


def _fits(number: float, schema: Mapping[str, Any]) -> bool:
    whole = schema["type"] == "number" or isinstance(number, int)
    return whole and schema.get("minimum", number) <= number <= schema.get("maximum", number)


def _span_rules(phrases: Sequence[Sequence[str]], tokenize: Tokenize) -> list[str]:
    """Return the rules of ``span``: any run of words of a phrase, without the punctuation around it.

    The rule ``wI_J`` matches the text after word J - 1 of phrase I. A word in the middle keeps its punctuation.
    """
    starts, rules, texts = list[str](), list[tuple[str, list[str]]](), list[str]()

    def use(text: str, then: str = "") -> str:
        texts.append(text)
        return f"<{len(texts) - 1}>{then}"

    for at, phrase in enumerate(phrases):
        for index, word in enumerate(phrase):
            core, lead, trail = _trimmed(word), _lead_trimmed(word), _trail_trimmed(word)
            more = f" w{at}_{index + 1}" if index + 1 < len(phrase) else ""
            if _can_end(word):
                starts += [use(core), *([use(lead, more)] if more else [])]
            if index:
                ends = [use(" " + trail)] if _can_end(word) else []
                rules.append((f"w{at}_{index}", ends + ([use(" " + word, more)] if more else [])))
    tokens = tokenize([json.dumps(text, ensure_ascii=False)[1:-1] for text in texts])
    written = [" ".join(f"<[{token}]>" for token in each) for each in tokens]

    def filled(choices: list[str]) -> str:
        return " | ".join(dict.fromkeys(re.sub(r"<(\d+)>", lambda found: written[int(found[1])], c) for c in choices))

    return [f"span: {filled(starts)}", *(f"{name}: {filled(choices)}" for name, choices in rules)]


def _lead_trimmed(word: str) -> str:
    found = _EDGE.search(word)
    return word[found.start() :] if found else ""


def _trail_trimmed(word: str) -> str:
    found = _EDGE.search(word)
    return word[: found.end()] if found else ""


def _literal(text: str) -> str:
    return json.dumps(text)
