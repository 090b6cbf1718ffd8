"""Ask for approvals in a Slack conversation, for agents that do not talk to people there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ..._base.text import describe
from ..._base.workers import in_thread
from ...stores.approvals import ApprovalRow, ApprovalStore, DecisionRefusedError
from ...stores.errors import StoreError
from ...stores.messages import InboundMessage, OutboundMessage
from .. import notices
from ..access import Access
from ..approvals import PendingApproval, format_time, outcome, render_request
from ..protocol import Address, ApprovalOutcome, ApprovalPrompt, ChannelError, Health, UndeliverableError
from ..receiving import Backoff
from .channel import CHAT_ID, SlackChannel

log = logging.getLogger("hookline")


class SlackApprover:
    """Show each waiting call in a Slack conversation, with buttons, and store the decision.

    Use it inside ``async with``: as ``notify`` of :class:`ApprovalsHook`, for the calls of an agent in this program, or
    with :func:`watch_approvals`, for the calls of all programs that share the approvals file. In a gateway,
    :class:`SlackChannel` alone asks in the conversation of the run.

    Example::

        slack = SlackChannel(token=os.environ["SLACK_BOT_TOKEN"], app_token=os.environ["SLACK_APP_TOKEN"])
        approver = SlackApprover("approvals.db", slack, chat="C0123ABCD", approve=["U0ADA"])
        agent = Agent("ops", llm=model, tools=[deploy],
                      hooks=[PlanModeHook(["deploy"]), ApprovalsHook(approver.store, notify=approver)])
        async with approver:
            await agent.arun("Ship it.")

    Args:
        store: an :class:`ApprovalStore`, or the path of its SQLite file.
        channel: the connection to Slack. It must not be used by a gateway as well.
        chat: the id of the Slack channel, or of a direct conversation, in which people are asked.
        approve: the member ids of the people who may decide; ``"*"`` for everyone who can read the conversation.

    Raises:
        ChannelError: nobody may decide, or ``chat`` is not the id of a conversation.
        TypeError: ``approve`` is not a list of texts.
        StoreError: the path cannot be used.
    """

    def __init__(self, store: str | ApprovalStore, channel: SlackChannel, *, chat: str, approve: Iterable[str]) -> None:
        self.store = store if isinstance(store, ApprovalStore) else ApprovalStore(store)
        self._channel = channel
        if not isinstance(chat, str) or not CHAT_ID.fullmatch(chat):
            raise ChannelError(f"{chat!r:.80} is not the id of a Slack conversation, such as C0123ABCD")
        self._address = Address(channel.name, chat)
        self._access = Access(approve=approve)
        if not self._access.approve:
            raise ChannelError("approve is empty, so nobody may decide: list the member ids of people")
        self._open: dict[str, tuple[ApprovalRow, ApprovalPrompt]] = {}  # by code
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> SlackApprover:
        """Connect to Slack.

        Raises:
            ChannelError: Slack rejects a token.
        """
        await self._channel.start(self._receive)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        await self._channel.stop()

    def health(self) -> Health:
        """Whether decisions can be received."""
        return self._channel.health()

    def routes(self) -> Any:
        """Return the route for Slack's requests over HTTP; empty in socket mode."""
        return self._channel.routes() if hasattr(self._channel, "routes") else []

    async def __call__(self, row: ApprovalRow) -> None:
        """Ask about a call, and wait until this is cancelled because the call no longer waits."""
        code = row.id.removeprefix("appr_")[:8].upper()
        pending = PendingApproval("", row, code, decidable=False)  # not with commands
        limit = self._channel.capabilities.max_length
        instructions = [notices.use_buttons(format_time(row.expires))]
        texts, complete = render_request(pending, limit=limit, instructions=instructions)
        key = f"{row.id}-{len(texts) - 1}"
        if complete:
            self._open[code] = row, ApprovalPrompt(code, key, row.digest)
            self._show_buttons()
        try:
            for number, text in enumerate(texts):
                await self._send(OutboundMessage(text), f"{row.id}-{number}")
            await asyncio.get_running_loop().create_future()
        finally:
            task = asyncio.create_task(self._close(code, row, key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _close(self, code: str, row: ApprovalRow, key: str) -> None:
        """Show the outcome of a call below it, instead of the buttons."""
        with suppress(StoreError):
            row = await in_thread(self.store.find, row.id)
        if row.status != "pending":
            self._channel.approval_closed(self._address, ApprovalOutcome(key, outcome(row), row.by))
        self._open.pop(code, None)
        self._show_buttons()

    def _show_buttons(self) -> None:
        self._channel.approvals_changed(self._address, [prompt for _, prompt in self._open.values()])

    async def _receive(self, message: InboundMessage) -> bool:
        """Decide as a button says, and tell the person who pressed it."""
        if not message.digest:
            return True  # people talk to an approver in vain
        command, code, *scope = message.text.split()
        text = await self._decide(message, command, code, scope[0] if scope else "once")
        reply = OutboundMessage(text, reply_to=message.message_id, thread_id=message.thread_id)
        try:
            address = Address(self._channel.name, message.chat_id)
            await self._channel.send(address, reply, key=message.message_id)
        except ChannelError as error:
            log.warning("channel %s: the reply to a button cannot be sent: %s", self._channel.name, error)
        return True

    async def _decide(self, message: InboundMessage, command: str, code: str, remember: str) -> str:
        if not self._access.may_approve(message.sender):
            return notices.MAY_NOT_APPROVE
        row, _ = self._open.get(code, (None, None))
        if row is None:
            return notices.out_of_date(code, [])
        try:
            row = await in_thread(
                self.store.decide,
                row.id,
                decision=command.removeprefix("/"),
                digest=message.digest,
                by=f"{self._channel.name}:{message.sender}",
                remember=remember,
            )
        except DecisionRefusedError as error:
            if error.code == "rights":
                return f"{code}: {error}"
            return (
                f"{code}: {outcome(error.row)}" if error.code == "gone" and error.row else notices.out_of_date(code, [])
            )
        except StoreError as error:
            log.error("a decision could not be saved: %s", describe(error))
            return notices.NOT_SAVED
        if row.status == "pending":
            return f"{code}: {row.who_is_needed}"
        return f"{code}: {notices.decided(row.tool, row.status, row.remember)}"

    async def _send(self, message: OutboundMessage, key: str) -> None:
        """Send a message, with as many attempts as needed.

        Raises:
            UndeliverableError: the message can never be sent, for example because the bot is not in the channel.
        """
        backoff = Backoff()
        while True:
            try:
                await self._channel.send(self._address, message, key=key)
                return
            except UndeliverableError:
                raise
            except ChannelError as error:
                log.warning("channel %s: a call cannot be shown, trying again: %s", self._channel.name, error)
                await asyncio.sleep(max(backoff.next(), error.retry_after or 0.0))
