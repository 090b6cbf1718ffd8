"""Messages, steps, drafts and waiting calls that the web channel sends to an open page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from ..._web.chat.protocol import Asked, Draft, Message, Prompt, StepCard, Verdict, Work
from ...explain.words import OUTCOMES, gate_of, verb_words
from ...stores.chats import ChatMessage
from .. import protocol
from ..protocol import ApprovalPrompt, Step

STEPS = "steps"
"""The kind of a stored message with the steps of a run."""
_STATES = {"running": ("running", "blue"), "waiting": ("waits for approval", "violet"), "ok": ("done", "grey")}

IDLE = ("", 0)
"""Activity of a conversation in which no message is being answered and none waits."""


class PageConnection:
    """The stream of one open page, and the state that the page has received.

    ``rev`` is the last change of the chat that was sent; ``activity``, ``prompts`` and ``draft`` are the state that it
    shows.
    """

    def __init__(self, chat: str, rev: int) -> None:
        self.chat = chat
        self.rev = rev
        self.wake = asyncio.Event()
        self.closed = False
        self.typing = False
        self.activity: tuple[str, int] = IDLE
        self.prompts: Sequence[ApprovalPrompt] = ()
        self.draft: protocol.Draft | None = None

    def changes(
        self, activity: tuple[str, int], prompts: Sequence[ApprovalPrompt], draft: protocol.Draft | None
    ) -> dict[str, Any]:
        """Return the parts that differ from those that the page has."""
        parts: dict[str, Any] = {}
        if self.typing:
            self.typing = False
            parts["typing"] = True
        if activity != self.activity:
            self.activity = activity
            parts["work"] = Work(*activity)
        if prompts != self.prompts:
            self.prompts = prompts
            parts["asked"] = Asked(tuple(map(prompt_part, prompts)))
        if draft != self.draft:
            before, self.draft = self.draft, draft
            parts["draft"] = _draft_part(draft, before)
        return parts


def _draft_part(draft: protocol.Draft | None, before: protocol.Draft | None) -> Draft:
    """Return a reply that is being written: what was added to it, if the page has the beginning."""
    if draft is None:
        return Draft()
    known = before.text if before is not None and before.reply_to == draft.reply_to else ""
    more = bool(known) and draft.text.startswith(known)
    return Draft(draft.reply_to, draft.speaker, draft.text[len(known) :] if more else draft.text, more)


def prompt_part(prompt: ApprovalPrompt) -> Prompt:
    """Return a call that waits for a decision."""
    return Prompt(
        key=prompt.key,
        agent=prompt.agent,
        tool=prompt.tool,
        arguments=prompt.arguments,
        digest=prompt.digest,
        expires=prompt.expires,
        questions=prompt.questions,
        remember=("once", "session") if prompt.single else ("once",),
        needed=prompt.needed,
        exact=not prompt.single,
    )


def message_part(message: ChatMessage) -> Message:
    """Return a stored message, or the steps of a run."""
    if message.side == "in":
        return Message(message.seq, "in", round(message.at, 3), message.text, id=message.key, rev=message.rev)
    steps = msgspec.Raw(message.text.encode()) if message.kind == STEPS else None
    return Message(
        message.seq,
        "out",
        round(message.at, 3),
        "" if steps is not None else message.text,
        to=message.reply_to,
        key=message.key,
        speaker=message.speaker,
        rev=message.rev,
        steps=steps,
    )


def steps_text(steps: Sequence[Step], you: str) -> str:
    """Return steps as the page gets them: with words and colours for states and verdicts.

    Args:
        steps: the steps.
        you: the person who sees the page, as decisions name them.
    """
    return msgspec.json.encode([_step_card(step, you) for step in steps]).decode()


def _step_card(step: Step, you: str) -> StepCard:
    verdicts = []
    for each in step.verdicts:
        word, tone = verb_words(each.verb)
        reason = "by you" if each.reason == f"by {you}" else each.reason
        waits = each.verb == "ask" and step.state == "waiting"
        verdicts.append(Verdict(word, tone, "waits" if waits else gate_of(each.verb), each.hook, reason))
    word, tone = _STATES.get(step.state) or (step.state, OUTCOMES.get(step.state, "grey"))
    return StepCard(step.tool, word, tone, step.text, verdicts=tuple(verdicts))
