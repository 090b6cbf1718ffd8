"""Render texts as Slack's blocks.

Texts come from a model. So they are sent as ``rich_text`` elements, which Slack shows literally: a text cannot mention
``@channel``, disguise a link, or leave the code block that shows the arguments of a call. In Slack's own markup
(``mrkdwn``) it could do all of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from ..protocol import ApprovalOutcome, ApprovalPrompt
from .messages import ButtonValue

_FENCE = re.compile(r"(?ms)^```[^\n`]*\n(.*?)\n?^```[ ]*$")
_INLINE = re.compile(
    r"`(?P<code>[^`\n]+)`|\*\*(?P<bold>[^*\n]+)\*\*|(?P<url>https?://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]])"
)
_MEMBER = re.compile(r"[UW][A-Z0-9]{1,40}")
_BUTTONS = (
    ("hookline_approve", "Approve", "primary"),
    ("hookline_session", "Approve for this conversation", ""),
    ("hookline_deny", "Deny", "danger"),
)


def fallback(text: str) -> str:
    """Return a text for notifications, in which Slack finds no markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def render(
    text: str,
    prompt: ApprovalPrompt | None = None,
    outcome: ApprovalOutcome | None = None,
    *,
    thread: str = "",
    channel: str = "",
) -> list[dict[str, Any]]:
    """Render a text with its code blocks, links, bold words and code.

    Args:
        text: the text, in Markdown.
        prompt: the call that the text shows; adds the buttons to decide about it.
        outcome: the outcome of that call, shown below the text instead of the buttons.
        thread: the thread of the conversation.
        channel: the name of the channel, whose people are named in an outcome.
    """
    elements = list(_elements(text)) or [{"type": "rich_text_section", "elements": _literal(text)}]
    blocks: list[dict[str, Any]] = [{"type": "rich_text", "elements": elements}]
    if outcome is not None:
        line = {"type": "rich_text_section", "elements": _outcome(outcome, channel)}
        blocks.append({"type": "rich_text", "elements": [line]})
    elif prompt is not None:
        value = msgspec.json.encode(ButtonValue(prompt.code, prompt.digest, thread)).decode()
        blocks.append({"type": "actions", "elements": [_button(*each, value) for each in _BUTTONS]})
    return blocks


def _outcome(outcome: ApprovalOutcome, channel: str) -> list[dict[str, Any]]:
    """Return the text of an outcome, with the name of the person who decided in this channel instead of the id.

    An id of another channel stays as it is: it can read like that of a member here.
    """
    source, _, person = outcome.by.partition(":")
    if source != channel or not _MEMBER.fullmatch(person) or outcome.by not in outcome.text:
        return _literal(outcome.text)
    before, _, after = outcome.text.partition(outcome.by)
    return [*_literal(before), {"type": "user", "user_id": person}, *_literal(after)]


def _button(action: str, label: str, style: str, value: str) -> dict[str, Any]:
    button = {
        "type": "button",
        "action_id": action,
        "text": {"type": "plain_text", "text": label, "emoji": False},
        "value": value,
    }
    return button | ({"style": style} if style else {})


def _elements(text: str) -> Iterator[dict[str, Any]]:
    at = 0
    for fence in _FENCE.finditer(text):
        yield from _section(text[at : fence.start()])
        if fence[1]:
            yield {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": fence[1]}]}
        at = fence.end()
    yield from _section(text[at:])


def _section(text: str) -> Iterator[dict[str, Any]]:
    text = text.strip("\n")
    if not text:
        return
    parts: list[dict[str, Any]] = []
    at = 0
    for found in _INLINE.finditer(text):
        parts += _literal(text[at : found.start()])
        if found["url"]:
            parts.append({"type": "link", "url": found["url"]})
        else:
            style = "code" if found["code"] else "bold"
            parts.append({"type": "text", "text": found[style], "style": {style: True}})
        at = found.end()
    yield {"type": "rich_text_section", "elements": [*parts, *_literal(text[at:])]}


def _literal(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []
