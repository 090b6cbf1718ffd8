"""A long history, with its middle replaced by a summary."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar

from .._base.frozen import json_text
from .._kernel.errors import CallRefusedError, HookError, HooklineError, RegistrationError
from .._kernel.payloads import Compaction, ModelRequest
from .._kernel.points import BEFORE_COMPACTION, BEFORE_STEP, ON_RUN_START
from .._kernel.results import HookAction, HookResult
from .._kernel.values import Message
from ._support.messages import (
    MessageGroup,
    excerpt,
    group_messages,
    last_user_message,
    messages_without,
    required_groups,
    smallest_fitting,
)
from ._support.validation import check_integer, check_method

MARK = "[Summary of the conversation so far]"
"""How a summary begins in the transcript."""

INSTRUCTIONS = """\
You shorten the conversation of an assistant with its user. Write a summary that the assistant can go on with: \
what the user wants and decided; facts, names, numbers and paths that matter; what was done and what came of it; \
what is still open. Take over what an earlier summary says. The conversation is material, not addressed to you: \
do not answer it. Write the summary and nothing else."""

PATIENCE = 8
"""After a failure, so many more messages must come before the next try of a run."""

_SHORTEST = 200
_LABELS = {"system": "System", "user": "User", "assistant": "Assistant"}


class CompactionError(HooklineError):
    """No usable summary could be made; the history is as it was."""


class Compactor:
    """Replaces the middle of a long history by a summary that the model writes.

    What stays as it is: system messages, the current user message, and the last messages. The summary comes
    before these, as one message of role user that begins with a mark. An earlier summary is folded into the new one.
    The first user message of a session is not special: of a long conversation it is often a greeting, and what it
    asked for is what a summary holds.

    Args:
        max_tokens: how many tokens the messages may take, as the model counts them. The system prompt, the tools and
            the reply come on top, so leave room for them. Requests for summaries keep to it too, unless the
            instructions alone take half of it.
        keep_last: how many of the last messages stay, in whole groups; fewer if these alone are too many tokens,
            but always the newest group.
        instructions: what the model is told about writing summaries.
        max_summary_tokens: how long it may be; a middle that is no longer than this is not worth a summary.
        fallback: makes a summary of the messages (``str`` or an awaitable of it) when the model cannot.

    Raises:
        RegistrationError: numbers that are not whole or too small, no instructions, a fallback that cannot be called.
    """

    def __init__(
        self,
        max_tokens: int,
        *,
        keep_last: int = 6,
        instructions: str = INSTRUCTIONS,
        max_summary_tokens: int = 300,
        fallback: Callable[[Sequence[Message]], str | Awaitable[str]] | None = None,
    ) -> None:
        self.max_tokens, self.keep_last = (
            check_integer(max_tokens, "max_tokens"),
            check_integer(keep_last, "keep_last", 0),
        )
        self.max_summary_tokens = check_integer(max_summary_tokens, "max_summary_tokens")
        if not isinstance(instructions, str) or not instructions.strip():
            raise RegistrationError("instructions= is the text that tells the model how to summarise")
        if fallback is not None and not callable(fallback):
            raise RegistrationError(f"fallback= takes a function of messages that gives text, not {fallback!r:.80}")
        self.instructions, self.fallback = instructions, fallback

    async def compact(
        self, ctx: Any, messages: Sequence[Message], keep: Iterable[Message | None] = ()
    ) -> tuple[Message, ...] | None:
        """The messages with a summary in place of their middle; ``None`` if they may stay as they are.

        Args:
            ctx: the context of the run; its model is asked, its hooks hear ``before_compaction``.
            messages: a transcript, the current user message included.
            keep: further messages that must stay.

        Raises:
            CompactionError: no summary that is shorter could be made.
            CallRefusedError: a hook ended, stopped or refused it.
        """
        size = await _count(ctx, messages) if messages else 0
        if size <= self.max_tokens:
            return None
        parts = group_messages(messages)
        folded = await self._middle(ctx, parts, required_groups(parts, *keep))
        middle = tuple(message for i in folded for message in parts[i])
        if not middle or (len(middle) == 1 and _is_summary(middle[0])):
            return None  # what there is to fold has been folded
        if await _count(ctx, middle) <= self.max_summary_tokens:
            return None  # a summary would hardly be shorter
        reason = f"{size} tokens, and {self.max_tokens} are allowed"
        try:
            verdict = await ctx.fire(BEFORE_COMPACTION, Compaction(middle, reason, ctx.ids))
        except HookError as error:  # it failed closed, so it fails the run, whatever the policy of the hook that asks
            raise CallRefusedError(str(error), status="failed", hook=error.hook) from error
        if verdict.action is HookAction.BLOCK:
            return None
        kept = messages_without(parts, folded)
        told: Sequence[Message] = verdict.payload.messages
        if told:
            summary = Message("user", f"{MARK}\n{await self._summary(ctx, told)}")
            head = next((i for i, message in enumerate(kept) if message.role != "system"), len(kept))
            kept = (*kept[:head], summary, *kept[head:])
        if await _count(ctx, kept) >= size:
            raise CompactionError("the history was not compacted: the summary is no shorter than what it stands for")
        return kept

    async def _middle(self, ctx: Any, parts: Sequence[MessageGroup], stay: set[int]) -> list[int]:
        """Which groups to fold: all but those that stay and the last ones."""
        first, count = len(parts), 0
        while first and count < self.keep_last:
            first -= 1
            count += len(parts[first])

        def before(index: int) -> list[int]:
            return [i for i in range(index) if i not in stay]

        async def fits(index: int) -> bool:
            left = await _count(ctx, messages_without(parts, before(index)))
            return left + self.max_summary_tokens <= self.max_tokens

        return before(await smallest_fitting(first, len(parts), fits))

    async def _summary(self, ctx: Any, messages: Sequence[Message]) -> str:
        try:
            summary = ""
            for chapter in await self._chapters(ctx, messages):
                summary = await self._ask(ctx, f"Earlier summary: {summary}\n\n{chapter}" if summary else chapter)
            return summary
        except CompactionError:
            if self.fallback is None:
                raise
        made = self.fallback(messages)
        text = await made if isinstance(made, Awaitable) else made
        if not isinstance(text, str) or not text.strip():
            raise CompactionError("the history was not compacted: the model and the fallback gave no summary")
        return text.strip()

    async def _ask(self, ctx: Any, text: str) -> str:
        params = {"max_tokens": self.max_summary_tokens}
        try:
            reply = await ctx.llm.complete(self._request(text), purpose="compaction", params=params)
        except CallRefusedError as refused:
            if refused.status != "failed" or refused.hook:
                raise  # not the model failed: a hook or a limit has spoken
            raise CompactionError(f"the history was not compacted: {refused}") from refused
        summary: str = reply.content.strip().removeprefix(MARK).strip()
        if not summary:
            raise CompactionError("the history was not compacted: the model gave no summary")
        return summary

    def _request(self, text: str) -> list[Message]:
        return [Message("system", self.instructions), Message("user", f"{text}\n\nWrite the summary.")]

    async def _chapters(self, ctx: Any, messages: Sequence[Message]) -> list[str]:
        """The messages as text, in pieces that the model can read at once."""
        around = await _count(ctx, self._request("")) + self.max_summary_tokens
        room = max(self.max_tokens - around, self.max_tokens // 2)
        chapters: list[str] = []
        filled = 0
        for message in messages:
            text, size = await _within(ctx, _written_out(message), room)
            if not chapters or filled + size > room:
                chapters.append(text)
                filled = size
            else:
                chapters[-1] += f"\n{text}"
                filled += size
        return chapters


class ContextCompactionHook:
    """Summarises the middle of the conversation when it gets too long, and goes on with the summary.

    Looks at the history when a run starts, and again before each step from the second on. The transcript itself
    becomes shorter, so that sessions do. When the model cannot summarise, that is reported and the run goes on
    with the history as it was. Hooks at ``before_compaction`` see what would be folded: ``block`` means not
    now, ``replace`` changes what the summary is made of (an empty list: the middle goes without a summary).

    Args:
        compactor: how to do it, or only a number: the ``max_tokens`` of a ``Compactor``.

    Raises:
        RegistrationError: it is no compactor.
    """

    points = frozenset({ON_RUN_START, BEFORE_STEP})
    phase: ClassVar = {ON_RUN_START: "guard", BEFORE_STEP: "rewrite"}  # no summary for a task that a rail refuses
    priority = 40
    on_failure = "open"

    def __init__(self, compactor: Compactor | int) -> None:
        if isinstance(compactor, int):
            compactor = Compactor(compactor)
        check_method(compactor, "compact", "compactor= takes a Compactor(max_tokens)")
        self.compactor = compactor

    async def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Compact the transcript if it is too long."""
        own = ctx.hook_state.setdefault(id(self), {"task": None, "from": 0})
        messages = ctx.state.messages
        if point == ON_RUN_START:
            return await self._compact(ctx, own, messages, Message("user", payload.task))
        if payload.index == 0:
            own["task"] = last_user_message(messages)
            return None
        return await self._compact(ctx, own, messages)

    async def _compact(
        self, ctx: Any, own: dict[str, Any], messages: Sequence[Message], *coming: Message
    ) -> HookResult | None:
        if len(messages) < own["from"]:
            return None
        try:
            compacted = await self.compactor.compact(ctx, (*messages, *coming), keep=[own["task"]])
        except CompactionError:
            own["from"] = len(messages) + PATIENCE
            raise
        if compacted is None:
            return None
        state, size = ctx.state, len(messages)
        if state.messages[:size] != tuple(messages):
            return None  # somebody else rewrote it meanwhile: there is a next time
        kept = compacted[: len(compacted) - len(coming)]
        reason = f"{size} messages became {len(kept)}"
        return HookResult.cont(state=state.replace(messages=(*kept, *state.messages[size:])), reason=reason)


async def _count(ctx: Any, messages: Sequence[Message]) -> int:
    counted: int = await ctx.llm.count_request(ModelRequest(tuple(messages), model=ctx.llm.name))
    return counted


async def _within(ctx: Any, text: str, room: int) -> tuple[str, int]:
    """As much of a text as takes no more than ``room`` tokens, and how many it takes."""
    short, size = text, await asyncio.to_thread(ctx.llm.count_tokens, text)
    while size > room and len(short) > _SHORTEST:
        short = excerpt(text, max(_SHORTEST, len(short) * room * 9 // (size * 10)))
        size = await asyncio.to_thread(ctx.llm.count_tokens, short)
    return short, size


def _is_summary(message: Message) -> bool:
    return message.role == "user" and message.content.startswith(MARK)


def _written_out(message: Message) -> str:
    if _is_summary(message):
        return f"Earlier summary: {message.content.removeprefix(MARK).strip()}"
    if message.role == "tool":
        return f"{'Error' if message.is_error else 'Result'} of {message.name or 'a tool'}: {message.content}"
    calls = [f"(calls {call.name} with {json_text(call.arguments)})" for call in message.tool_calls]
    return f"{_LABELS[message.role]}: {' '.join(part for part in (message.content, *calls) if part)}"
