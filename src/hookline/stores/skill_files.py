"""A skill as text: a small front matter, then what to do in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from .._base.frozen import Frozen, json_text
from .errors import StoreError

State = Literal["accepted", "proposed", "rejected"]

MAX_NAME, MAX_DESCRIPTION, MAX_TEXT = 64, 1024, 50_000

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FENCE = "---"
_DEVICES = {"aux", "con", "nul", "prn", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}


class Skill(Frozen, frozen=True):
    """How to do something, in words for a model.

    ``source_run``, ``source_task`` and ``source_tools`` tell which run it was learned from, if it was; ``origin`` is
    the same for runs with the same task and tools.
    """

    name: str
    description: str
    text: str
    state: State = "accepted"
    date: str = ""
    source_run: str = ""
    source_task: str = ""
    source_tools: tuple[str, ...] = ()
    origin: str = ""


def is_name(text: object) -> bool:
    """Whether a skill may be called so: lower case letters and digits, in words with hyphens between them."""
    return (
        isinstance(text, str)
        and len(text) <= MAX_NAME
        and _NAME.fullmatch(text) is not None
        and text not in _DEVICES  # no file can be called so everywhere
    )


def checked_name(name: object) -> str:
    """The name of a skill.

    Raises:
        StoreError: nothing can be called so.
    """
    if not is_name(name):
        raise StoreError(
            f"{name!r:.80} cannot be the name of a skill: use lower case letters, digits and single hyphens, "
            f"at most {MAX_NAME}, such as 'tidy-notes'"
        )
    return str(name)


def checked(skill: Skill) -> Skill:
    """A skill that can be kept.

    Raises:
        StoreError: its name, description or text cannot be used.
    """
    checked_name(skill.name)
    description = " ".join(skill.description.split())
    if not description or len(description) > MAX_DESCRIPTION:
        raise StoreError(f"the skill {skill.name} needs a description of 1 to {MAX_DESCRIPTION} characters")
    if not skill.text.strip() or len(skill.text) > MAX_TEXT:
        raise StoreError(f"the skill {skill.name} needs a text of 1 to {MAX_TEXT:,} characters below its front matter")
    return skill.replace(description=description, text=skill.text.strip())


def written(skill: Skill) -> str:
    """A skill as the text of its file."""
    fields = {
        "name": skill.name, "description": skill.description, "date": skill.date, "source_run": skill.source_run,
        "source_task": skill.source_task, "source_tools": skill.source_tools, "origin": skill.origin,
    }  # fmt: skip
    lines = [f"{name}: {value if is_name(value) else json_text(value)}" for name, value in fields.items() if value]
    text = "\n".join([_FENCE, *lines, _FENCE, "", skill.text.strip(), ""])
    return text.encode(errors="replace").decode()


def read(raw: str, name: str, state: State) -> Skill:
    """The skill in the text of a file; what its front matter lacks is made up for.

    Args:
        raw: the text.
        name: what the skill is called: where its file is says so, not the front matter.
        state: what it is.

    Raises:
        StoreError: there is no text in it.
    """
    fields, text = front_matter(raw)
    first = next((line.strip() for line in text.splitlines() if line.strip() and line[0] not in "#-"), "")
    tools = fields.get("source_tools", ())
    return checked(
        Skill(
            name,
            _text(fields.get("description")) or first[:MAX_DESCRIPTION] or name,
            text,
            state,
            _text(fields.get("date")),
            _text(fields.get("source_run")),
            _text(fields.get("source_task")),
            tuple(map(_text, tools)) if isinstance(tools, list) else (),
            _text(fields.get("origin")),
        )
    )


def front_matter(raw: str) -> tuple[Mapping[str, Any], str]:
    """The fields at the head of a text, and the rest: values are plain, quoted or JSON; what is indented goes on."""
    lines = raw.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if not lines or lines[0].rstrip() != _FENCE:
        return {}, raw
    end = next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), 0)
    if not end:
        return {}, raw
    given: dict[str, str] = {}
    key = ""
    for line in lines[1:end]:
        head, colon, value = line.partition(":")
        if colon and head and head == head.strip() and head[0] not in "#-":
            key, given[head] = head, value.strip().removeprefix(">").removeprefix("|").removeprefix("-").strip()
        elif key and line[:1].isspace():
            given[key] = f"{given[key]} {line.strip()}".strip()
    return {name: _value(text) for name, text in given.items()}, "\n".join(lines[end + 1 :])


def _value(text: str) -> Any:
    if text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text[:1] in ('"', "["):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
    return text


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json_text(value)
    return " ".join(text.split())
