"""Generate the reference in `guides/rules.md`: keys, verbs, variables and functions of rules."""

import inspect
from typing import Any, get_args, get_type_hints

import msgspec

from hookline.hooks._rules.conditions import FUNCTIONS, VARIABLES
from hookline.hooks._rules.file import VERBS, Example, RuleData

from .markdown import cell, code, table, type_words, with_table

_KEYS = {
    "name": "identifies the rule in messages, statistics and records",
    "when": "the condition",
    "then": "the verb",
    "message": "what the model or the person reads, or the reply",
    "reason": "why, for people: in the audit log, statistics and questions",
    "point": "where it applies",
    "tools": "the tools that it is about: a glob, or a list of them",
    "agents": "the agents that it is about",
    "label": 'the label, for `then = "label"`',
    "shadow": "only report what it would do",
    "priority": "rules with a higher one come first, from -1000 to 1000",
    "examples": "its tests",
}
_VERBS = {
    "block": "the call does not run; the model reads the message",
    "ask": "a person must approve the call",
    "end": "the run ends with the message as its reply",
    "stop": "the run stops",
    "retry": "the reply is rejected, and the model answers again",
    "withhold": "the model reads the message instead of the result",
    "label": "the call gets a label, for other rules",
}
_VARIABLES = {
    "agent": "the name of the agent",
    "caller": "the user, caller or sender",
    "platform": "where the conversation is: `slack`, `claude-code`, ...",
    "task": "what the user asked last",
    "now": "the time (UTC)",
    "metadata": "the metadata of the run",
    "labels": "the labels of all calls before",
    "history": "the calls before, oldest first",
    "call.tool": "the tool",
    "call.arguments": "its arguments",
    "call.attempt": "1, and more after a retry",
    "call.effects": "the effects that the tool declares",
    "call.untrusted": "whether its results come from strangers",
    "result.text": "what the model would read",
    "result.value": "the result as JSON",
    "result.outcome": "`ok`, `error`, `blocked`, ...",
    "result.seconds": "how long it took",
    "request.model": "the model",
    "request.purpose": "`step`, or what else the call is for",
    "request.text": "the last message",
    "request.tools": "the tools that the model may call",
    "reply.text": "its text",
    "reply.tools": "the tools that it calls",
    "reply.purpose": "`step`, or what else the call is for",
}
_TYPES = {"strings": "list of texts", "calls": "list of calls", "string": "text", "dyn": "any", "int": "integer"}


def page(text: str) -> str:
    """Return the page with new tables."""
    for name, made in {
        "keys": table(("key", "type", "default", "meaning"), map(_key, msgspec.structs.fields(RuleData))),
        "verbs": table(("point", "verbs", "meaning"), _verbs()),
        "variables": table(("variable", "type", "points", "meaning"), _variables()),
        "functions": table(("function", "returns"), ((code(name), cell(what)) for name, what in FUNCTIONS.items())),
        "examples": table(("key", "type"), map(_example, msgspec.structs.fields(Example))),
    }.items():
        text = with_table(text, name, made)
    return text


def _key(field: Any) -> tuple[str, ...]:
    given = field.default
    default = "" if given is msgspec.NODEFAULT or given in ("", ()) else code(_toml(given))
    return code(field.name), _type(RuleData, field.name), default, _KEYS[field.name]


def _example(field: Any) -> tuple[str, ...]:
    return code(field.name), _type(Example, field.name)


def _type(kind: Any, name: str) -> str:
    words = str(inspect.get_annotations(kind)[name])
    known = {
        "str": "text",
        "bool": "true or false",
        "float": "number",
        "int | None": "integer",
        "tuple[str, ...]": "text or list of texts" if kind is RuleData else "list of texts",
        "Verb": "verb",
        "PointName": "point",
        "tuple[Example, ...]": "list of tables",
        "tuple[PastCall, ...]": "list of tables: `tool`, `arguments`, `outcome`, `approved`, `labels`, `agent`",
        "Mapping[str, Any]": "table",
        "datetime | None": "time",
    }
    if words.startswith("Literal["):
        return "one of " + ", ".join(code(each) for each in get_args(get_type_hints(kind)[name]))
    return known.get(words) or code(type_words(words))


def _toml(value: Any) -> str:
    text = value[0] if isinstance(value, tuple) else value
    return msgspec.json.encode(text).decode()


def _verbs() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for point, verbs in VERBS.items():
        for number, verb in enumerate(verbs):
            rows.append(("" if number else code(point), code(verb), _VERBS[verb]))
    return rows


def _variables() -> list[tuple[str, ...]]:
    points: dict[str, list[str]] = {}
    types: dict[str, str] = {}
    for point, names in VARIABLES.items():
        for name, kind in names.items():
            points.setdefault(name, []).append(point)
            types[name] = _TYPES.get(kind, kind)
    return [
        (
            code(name),
            types[name],
            "all" if len(where) == len(VARIABLES) else ", ".join(map(code, where)),
            _VARIABLES[name],
        )
        for name, where in points.items()
    ]
