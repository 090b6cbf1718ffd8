"""Rules in plain English, for people who review rules and not code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..._base.frozen import plain
from .file import EVERY, TOOL_POINTS, Example, FileData, PastCall, RuleData

_CODE = re.compile(r"`([^`]*)`")


class ExplainedRule(NamedTuple):
    """A rule in words. Text in backticks is code."""

    name: str
    sentence: str
    said: str
    """The message, with who gets it."""
    reason: str
    condition: str
    is_shadow: bool
    examples: tuple[tuple[str, str], ...]
    """What the rule does, and in which situation."""


def explained(data: FileData) -> list[ExplainedRule]:
    """Return the rules of a file in words."""
    return [_explained(rule) for rule in data.rules]


def _explained(rule: RuleData) -> ExplainedRule:
    parts = [_moment(rule)]
    if rule.agents != EVERY:
        parts.append(f"by the agent {_names(rule.agents)}")
    condition = in_words(rule.when)
    parts.append(condition if condition == "always" else f"if {condition}")
    sentence = f"{' '.join(parts[:-1])}, {parts[-1]}: {_effect(rule)}."
    examples = tuple((_does(example), _situation(example, rule)) for example in rule.examples)
    said = f"{_READERS[rule.then]} “{rule.message}”" if rule.message else ""
    return ExplainedRule(rule.name, sentence, said, rule.reason, rule.when.strip(), rule.shadow, examples)


def _moment(rule: RuleData) -> str:
    if rule.point not in TOOL_POINTS:
        return {
            "on_run_start": "When a run starts",
            "before_llm": "Before each call of the model",
            "after_llm": "After each reply of the model",
        }[rule.point]
    tools = "any tool" if rule.tools == EVERY else _names(rule.tools)
    return f"{'Before' if rule.point == 'before_tool' else 'After'} each call of {tools}"


def _names(globs: Iterable[str]) -> str:
    return _joined([f"`{glob}`" for glob in globs], "or")


def _joined(parts: list[str], word: str) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {word} {parts[-1]}"


def _effect(rule: RuleData) -> str:
    return {
        "block": "the call is blocked, and the run goes on",
        "ask": "a person must approve the call",
        "stop": "the run stops",
        "end": "the run ends",
        "retry": "the reply is rejected, and the model answers again",
        "withhold": "the model does not get the result",
        "label": f"the call gets the label `{rule.label}`, for other rules",
    }[rule.then]


_READERS: Mapping[str, str] = {
    "block": "The model reads:",
    "ask": "The person reads:",
    "stop": "The message is:",
    "end": "The reply is:",
    "retry": "The model reads:",
    "withhold": "The model reads:",
    "label": "",
}
_DONE: Mapping[str, str] = {
    "block": "blocked",
    "ask": "asked",
    "stop": "stopped",
    "end": "ended",
    "retry": "rejected",
    "withhold": "withheld",
    "label": "labelled",
    "pass": "passes",
}


def _does(example: Example) -> str:
    return _DONE[example.then]


def _situation(example: Example, rule: RuleData) -> str:
    parts = []
    tool = example.tool or next((name for name in rule.tools if not set(name) & set("*?[")), "")
    if rule.point in TOOL_POINTS:
        parts.append(f"{tool or 'a tool'}({_arguments(example.arguments)})")
    if example.history:
        parts.append(f"after {', '.join(map(_past, example.history))}")
    if example.count is not None:
        parts.append(f"{example.count} calls of the caller before it")
    named = ("agent", "caller", "platform", "task", "text", "model")
    parts += [f"{name} {value!r}" for name in named if (value := getattr(example, name))]
    parts += [f"{name} {', '.join(value)}" for name in ("tools", "effects") if (value := getattr(example, name))]
    if example.outcome != "ok":
        parts.append(f"outcome {example.outcome}")
    if example.metadata:
        parts.append(f"metadata {_arguments(example.metadata)}")
    if example.untrusted:
        parts.append("the tool is untrusted")
    if example.now is not None:
        parts.append(f"at {example.now:%Y-%m-%d %H:%M}")
    return ", ".join(parts) or "nothing special"


def _past(call: PastCall) -> str:
    marks: list[str] = [call.outcome] if call.outcome != "ok" else []
    marks += ["approved"] if call.approved else []
    marks += [f"label {label}" for label in call.labels]
    return f"{call.tool}({_arguments(call.arguments)})" + (f" [{', '.join(marks)}]" if marks else "")


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={json.dumps(plain(value), ensure_ascii=False, default=str)}" for name, value in values.items()
    )


# Conditions. What has no words stays code.

_TEXT = r"""(?:'([^'\\]*)'|"([^"\\]*)")"""
_FIELD = r"([a-z]+(?:\.[A-Za-z_]\w*)+|[a-z]+)"
_VALUE = r"""('[^'\\]*'|"[^"\\]*"|-?\d[\w.]*|true|false)"""
_COMPARISONS = {
    "==": "is",
    "!=": "is not",
    ">": "is more than",
    ">=": "is at least",
    "<": "is less than",
    "<=": "is at most",
}
_UNITS = {"h": "hour", "m": "minute", "s": "second"}


def in_words(condition: str) -> str:
    """Return a condition in words, where it has any."""
    text = re.sub(r"//[^\n]*", " ", condition)
    return _alternatives(" ".join(text.split()))


def _alternatives(text: str) -> str:
    text = _without_brackets(text)
    for operator, word in (("||", "or"), ("&&", "and")):
        parts = _split(text, operator)
        if len(parts) > 1:
            said = [_alternatives(part) for part in parts]
            mixed = word == "or" and any(len(_split(_without_brackets(part), "&&")) > 1 for part in parts)
            mixed = mixed or (word == "and" and any(len(_split(_without_brackets(part), "||")) > 1 for part in parts))
            return f"; {word} ".join(said) if mixed else _joined(said, word)
    return _single(text)


def _without_brackets(text: str) -> str:
    text = text.strip()
    while text.startswith("(") and _end(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _split(text: str, operator: str) -> list[str]:
    """Split an expression at an operator that is in no brackets and in no text."""
    parts, start, place = [], 0, 0
    while place < len(text):
        if text[place] in "'\"":
            place = _end_of_text(text, place)
        elif text[place] in "([{":
            place = _end(text, place)
        elif text.startswith(operator, place):
            parts.append(text[start:place].strip())
            place += len(operator) - 1
            start = place + 1
        place += 1
    return [*parts, text[start:].strip()]


def _end(text: str, place: int) -> int:
    """Return the place of the bracket that closes the one at a place."""
    depth = 0
    while place < len(text):
        if text[place] in "'\"":
            place = _end_of_text(text, place)
        else:
            depth += (text[place] in "([{") - (text[place] in ")]}")
            if not depth:
                return place
        place += 1
    return len(text)


def _end_of_text(text: str, place: int) -> int:
    found = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""").match(text, place)
    return found.end() - 1 if found is not None else len(text)


def _single(text: str) -> str:
    """Return one comparison or function in words."""
    if text == "true":
        return "always"
    negated = text.startswith("!")
    said = _plain(_without_brackets(text[1:]), negated=True) if negated else _plain(text, negated=False)
    return said or f"`{text}`"


def _plain(text: str, *, negated: bool) -> str:
    is_not = "is not" if negated else "is"
    if (found := re.fullmatch(rf"called\({_TEXT}\)", text)) is not None:
        return (
            f"no call of `{_first(found)}` came before it" if negated else f"a call of `{_first(found)}` came before it"
        )
    if (found := re.fullmatch(rf"has\({_FIELD}\)", text)) is not None:
        return f"{_subject(found[1])} is {'missing' if negated else 'given'}"
    if (found := re.fullmatch(rf"within\({_FIELD}, ?{_TEXT}\)", text)) is not None:
        return f"{_subject(found[1])} {is_not} in the folder `{found[2] or found[3]}`"
    if (found := re.fullmatch(rf"{_TEXT} in labels", text)) is not None:
        return f"{'no' if negated else 'an'} earlier call has the label `{_first(found)}`"
    pattern = rf"{_FIELD}\.(startsWith|endsWith|contains|matches)\({_TEXT}\)"
    if (found := re.fullmatch(pattern, text)) is not None:
        verbs = {"startsWith": "start with", "endsWith": "end with", "contains": "contain", "matches": "match"}
        verb = verbs[found[2]]
        said = f"does not {verb}" if negated else verb.replace(" ", "s ", 1) if " " in verb else _third(verb)
        return f"{_subject(found[1])} {said} `{found[3] or found[4]}`"
    if (found := re.fullmatch(rf"glob\({_FIELD}, ?{_TEXT}\)", text)) is not None:
        return f"{_subject(found[1])} {'does not look' if negated else 'looks'} like `{found[2] or found[3]}`"
    if (found := re.fullmatch(rf"{_FIELD} in \[(.*)\]", text)) is not None and "[" not in found[2]:
        return f"{_subject(found[1])} {is_not} one of `{found[2]}`"
    if not negated:
        return _comparison(text)
    return ""


def _third(verb: str) -> str:
    return f"{verb}es" if verb.endswith("ch") else f"{verb}s"


def _first(found: re.Match[str]) -> str:
    return found[1] if found[1] is not None else found[2]


def _comparison(text: str) -> str:
    found = re.fullmatch(rf"(.+?) ?(==|!=|>=|<=|>|<) ?{_VALUE}", text)
    if found is None:
        return ""
    left, operator, value = found[1], found[2], found[3]
    said = f"{_COMPARISONS[operator]} `{value}`"
    if (host := re.fullmatch(rf"host\({_FIELD}\)", left)) is not None:
        return f"the host of {_subject(host[1])} {said}"
    if (size := re.fullmatch(rf"(?:size\({_FIELD}\)|{_FIELD}\.size\(\))", left)) is not None:
        return f"the length of {_subject(size[1] or size[2])} {said}"
    if (count := re.fullmatch(rf"count\({_TEXT}(?:, ?duration\(['\"]([\d.]+)([hms])['\"]\))?\)", left)) is not None:
        calls = f"the number of calls of `{_first(count)}`"
        if count[3] is None:
            return f"{calls} before it {said}"
        number, unit = count[3], _UNITS[count[4]]
        time = unit if number == "1" else f"{number} {unit}s"
        return f"{calls} of this caller in the last {time}, in all runs, {said}"
    return f"{_subject(left)} {said}" if re.fullmatch(_FIELD, left) else ""


def _subject(field: str) -> str:
    if field.startswith("call.arguments."):
        return f"its `{field.removeprefix('call.arguments.')}`"
    known = {
        "call.tool": "the tool",
        "call.attempt": "the attempt",
        "result.text": "the text of the result",
        "result.outcome": "the outcome",
        "result.seconds": "the time in seconds",
        "request.model": "the model",
        "request.text": "the last message",
        "reply.text": "the reply",
        "agent": "the agent",
        "caller": "the caller",
        "platform": "the platform",
        "task": "the task",
    }
    return known.get(field, f"`{field}`")


def without_code(text: str) -> str:
    """Return a text in words without the marks of code, for a terminal."""
    return _CODE.sub(r"\1", text)


def code_parts(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a text in words, and whether each is code."""
    return [(part, bool(index % 2)) for index, part in enumerate(_CODE.split(text)) if part]
