"""Approvals in conversations: show calls that wait for approval to people, and read their decisions."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from .._base.text import describe, error_text, one_line, visible_json
from .._base.workers import in_thread
from ..hooks.approvals import ApprovalsHook, wait_until_decided
from ..stores.approvals import ApprovalRow, ApprovalStore, DecisionRefusedError, matches
from ..stores.errors import StoreError
from ..stores.mailbox import InboxItem, LeaseLostError, OutboxItem
from . import notices
from .access import Access
from .conversations import Conversations, address_of, label_of
from .durable import PREFIX
from .options import GatewayOptions
from .outbox import Outbox
from .protocol import ApprovalOutcome, ApprovalPrompt, Channel
from .splitting import is_inside_character

log = logging.getLogger("hookline")

COMMANDS = {
    "approvals": "list the calls that wait for approval here",
    "approve": "let a call run: /approve CODE, CODE session, CODE always path=notes/*",
    "deny": "do not let a call run: /deny CODE reason",
    "edit": 'let a call run with other arguments: /edit CODE {"path": "notes/a.txt"}',
}

HOLD_SECONDS = 5.0
"""Seconds that a durable run waits for a decision before it is suspended."""

RETRY_SECONDS = 5.0
"""Seconds until decisions are read again after an error."""

SEND_TIMEOUT = 5.0
"""Seconds that a decision waits for the request itself, if that is still being sent."""

RECENT_SECONDS = 15.0
"""Seconds after a call stopped waiting in which a plain "yes" may still refer to that call."""

HISTORY_LIMIT = 500
"""Maximum number of past calls of a channel that are searched for an unknown code."""

MIN_CODE_LENGTH = 4
"""Shortest length of a code, in characters."""

MAX_ARGUMENTS = 30_000
"""Longest arguments that are shown in a conversation, in characters. Longer ones are left to an operator."""

_CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_PART_LABEL = 40  # room for the label of a part, in characters
_MAX_LISTED = 160
_PLAIN = {"yes": "approve", "y": "approve", "no": "deny", "n": "deny"}
_SCOPES = ("once", "session", "always")


class PendingApproval(msgspec.Struct):
    """A call that waits for approval in a conversation.

    ``decidable`` is true if someone in the conversation may decide about it. ``messages`` show the call to people, and
    ``complete`` is true if they show all of it. ``decided`` is true while a decision from this conversation is being
    saved; then the reply to that decision also reports the outcome.
    """

    key: str
    row: ApprovalRow
    code: str
    decidable: bool
    messages: list[OutboxItem] = []
    complete: bool = False
    decided: bool = False


class Approvals:
    """The calls that wait for approval in the conversations of a gateway.

    Args:
        store: holds the calls. ``None`` switches approvals in conversations off.
        outbox: sends the requests.
        channels: the channels by name.
        access: the access rules by channel name. Without rules, nobody in the channel may decide.
        options: of the gateway.
        conversations: the sessions; given if runs are durable, whose calls may be decided while no process has the run.
    """

    def __init__(
        self,
        store: ApprovalStore | None,
        outbox: Outbox,
        channels: Mapping[str, Channel],
        access: Mapping[str, Access],
        options: GatewayOptions,
        conversations: Conversations | None = None,
    ) -> None:
        self.store = store
        self._outbox = outbox
        self._channels = channels
        self._access = access
        self._conversations = conversations
        self.seconds = options.approval_seconds
        self._pending: dict[str, dict[str, PendingApproval]] = {}
        self._closed_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.commands: Mapping[str, str] = COMMANDS if store is not None else {}

    def for_run(
        self,
        item: InboxItem,
        set_waiting: Callable[[bool], None],
        was_interrupted: Callable[[], bool],
        *,
        durable: bool = False,
    ) -> RunApprovals | None:
        """Create the approvals of one run; ``None`` if approvals in conversations are switched off.

        Args:
            item: the message that the run answers.
            set_waiting: called with true when the run starts to wait for a decision, and with false when it stops.
            was_interrupted: whether the run was interrupted and will be started again.
            durable: whether the run is suspended if nobody decides at once: its calls wait without it.
        """
        if self.store is None:
            return None
        return RunApprovals(self, self.store, item, set_waiting, was_interrupted, durable=durable)

    def is_pending(self, key: str) -> bool:
        """Whether a call of this conversation waits for approval."""
        return bool(self._pending.get(key))

    async def wait_for_decision(self, key: str) -> None:
        """Wait until a call of this conversation, whose run was suspended, no longer waits, and report its outcome."""
        assert self.store is not None
        waits = [asyncio.create_task(self._wait_for(pending)) for pending in self._pending.get(key, {}).values()]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    async def _wait_for(self, pending: PendingApproval) -> None:
        assert self.store is not None
        while await self.is_waiting(pending):
            try:
                await wait_until_decided(self.store, pending.row, self.seconds)
            except StoreError as error:
                log.error("%s: decisions cannot be read: %s", label_of(pending.key), error_text(error))
                await asyncio.sleep(RETRY_SECONDS)
        await asyncio.shield(self.spawn(self._report(pending)))

    async def is_waiting(self, pending: PendingApproval) -> bool:
        """Whether a call still waits for a decision, as far as the store can be read."""
        assert self.store is not None
        try:
            return (await in_thread(self.store.find, pending.row.id)).status == "pending"  # type: ignore[no-any-return]
        except StoreError:
            return True

    async def end_run(self, key: str, run_id: str) -> None:
        """Cancel the calls of a run that has ended and can no longer ask about them."""
        if self.store is None:
            return
        try:
            for row in await in_thread(self.store.rows, status="pending", root_id=run_id):
                await in_thread(self.store.end_pending, row.id, "cancelled")
        except StoreError as error:
            log.error("%s: calls of the run %s cannot be cancelled: %s", label_of(key), run_id, error_text(error))
        for pending in list(self._pending.get(key, {}).values()):
            if pending.row.root_id == run_id:
                await self._report(pending)

    async def _report(self, pending: PendingApproval) -> None:
        self.remove(pending)
        await self.send_outcome(pending, False)

    async def close(self) -> None:
        """Cancel the notices that are not sent yet."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def run_command(self, item: InboxItem, name: str, argument: str) -> str:
        """Carry out one of :data:`COMMANDS` and return the reply."""
        await self._find_stored(item)
        if name == "approvals":
            return self._list(item)
        if not self._may_decide(item):
            return notices.MAY_NOT_APPROVE
        code, _, rest = argument.partition(" ")
        pending = self._find(item.key, code)
        if pending is None:
            return await self._unknown_code(item, name, code)
        return await self._decide(item, pending, name, rest.strip())

    async def plain_decision(self, item: InboxItem, text: str) -> str | None:
        """Treat a plain "yes" or "no" as a decision and return the reply; ``None`` if it is an ordinary message."""
        decision = _PLAIN.get(text.strip().rstrip(".!").lower())
        if decision is None or not self._may_decide(item):
            return None
        await self._find_stored(item)
        shown = [pending for pending in self._pending.get(item.key, {}).values() if pending.messages]
        if item.recovered:  # it may be the answer to something else that was asked before
            shown = [pending for pending in shown if pending.messages[-1].at < item.at]
        if len(shown) > 1 or (shown and item.key in self._recently_closed()):
            return notices.which_call(decision, [pending.code for pending in shown])
        if not shown or not await self._outbox.wait_until_sent(shown[0].messages, SEND_TIMEOUT):
            return None
        return await self._decide(item, shown[0], decision, "")

    async def _find_stored(self, item: InboxItem) -> None:
        """Find the calls of a durable run that was suspended by another process, and has not been taken up here yet."""
        if self.store is None or self._conversations is None or item.key in self._pending:
            return
        try:
            session = await self._conversations.session(item.key, item.message.platform)
            owner = channel_owner(item.channel)
            for row in await in_thread(self.store.rows, status="pending", owner=owner, limit=HISTORY_LIMIT):
                if row.session_id == session.id and row.root_id.startswith(PREFIX):
                    await self.send_request(self.add(item, row), item)
        except StoreError as error:
            log.error("%s: the calls that wait for approval cannot be read: %s", label_of(item.key), error_text(error))

    def _may_decide(self, item: InboxItem, *, always: bool = False) -> bool:
        access = self._access.get(item.channel)
        return access is not None and access.may_approve(item.message.sender, always=always)

    def _is_decidable(self, item: InboxItem) -> bool:
        """Whether someone in the conversation may decide."""
        access = self._access.get(item.channel)
        if access is None or not access.approve:
            return False
        return not item.message.direct or access.may_approve(item.message.sender)

    def _find(self, key: str, code: str) -> PendingApproval | None:
        code = _normalized(code)
        found = [
            pending
            for pending in self._pending.get(key, {}).values()
            if len(code) >= MIN_CODE_LENGTH and full_code(key, pending.row.id).startswith(code)
        ]
        return found[0] if len(found) == 1 else None

    async def _unknown_code(self, item: InboxItem, command: str, code: str) -> str:
        valid = [pending.code for pending in self._pending.get(item.key, {}).values()]
        code = _normalized(code)
        if len(code) >= MIN_CODE_LENGTH and self.store is not None:
            with suppress(StoreError):
                rows = await in_thread(self.store.rows, owner=channel_owner(item.channel), limit=HISTORY_LIMIT)
                if any(full_code(item.key, row.id).startswith(code) for row in rows):
                    return notices.out_of_date(code[: 2 * MIN_CODE_LENGTH], valid)
        return notices.which_call(command, valid, unknown=bool(code))

    async def _decide(self, item: InboxItem, pending: PendingApproval, command: str, rest: str) -> str:
        assert self.store is not None
        choice: dict[str, Any]
        if command != "deny" and not (
            pending.complete and await self._outbox.wait_until_sent(pending.messages, SEND_TIMEOUT)
        ):
            return notices.not_shown(pending.code)
        match command:
            case "approve":
                choice = _parse_scope(rest)
                if choice.get("remember") == "always" and not self._may_decide(item, always=True):
                    return notices.not_always(pending.code)
                if choice.get("pattern") and not matches(choice["pattern"], pending.row.arguments):
                    return notices.NOT_COVERED
            case "deny":
                choice = {"message": rest}
            case _:
                choice = _parse_arguments(rest)
        if problem := choice.pop("problem", ""):
            return str(problem)
        pending.decided = True
        try:
            row = await in_thread(
                self.store.decide,
                pending.row.id,
                decision=command,
                digest=item.message.digest or pending.row.digest,
                by=sender_id(item),
                owner=pending.row.owner,
                **choice,
            )
        except DecisionRefusedError as error:
            pending.decided = False
            if error.code == "gone" and error.row is not None:
                return f"{pending.code}: {outcome(error.row)}"
            told = error.code in ("bad", "rights")
            return f"{pending.code}: {error}" if told else notices.out_of_date(pending.code, [])
        except StoreError as error:
            pending.decided = False
            log.error("%s: a decision could not be saved: %s", label_of(item.key), error_text(error))
            return notices.NOT_SAVED
        if row.status == "pending":
            pending.decided, pending.row = False, row
            return f"{pending.code}: {row.who_is_needed}"
        # Closed here and not when the run notices the decision: the next "yes" must not apply to this call again.
        self._show_outcome(pending, outcome(row), row.by)
        self.remove(pending)
        return f"{pending.code}: {notices.decided(one_line(row.tool), row.status, row.remember)}"

    def _list(self, item: InboxItem) -> str:
        pending = self._pending.get(item.key, {}).values()
        if not pending:
            return notices.NOTHING_PENDING
        hide = not item.message.direct and not self._is_decidable(item)
        return "\n".join(render_line(each, hide_arguments=hide) for each in pending)

    def add(self, item: InboxItem, row: ApprovalRow) -> PendingApproval:
        """Record that a call waits in the conversation of a message."""
        pending = self._pending.setdefault(item.key, {})
        if row.id in pending:
            return pending[row.id]  # its run was suspended, and asks again
        code = short_code(item.key, row.id, pending.values())
        pending[row.id] = added = PendingApproval(item.key, row, code, self._is_decidable(item))
        return added

    def remove(self, pending: PendingApproval) -> None:
        """Record that a call no longer waits."""
        in_conversation = self._pending.get(pending.key, {})
        if not pending.decided and pending.row.id in in_conversation:
            self._closed_at = {**self._recently_closed(), pending.key: time.monotonic()}
        in_conversation.pop(pending.row.id, None)
        if not in_conversation:
            self._pending.pop(pending.key, None)
        self._outbox.untrack(pending.messages)
        self._notify_channel(pending.key)

    def _recently_closed(self) -> dict[str, float]:
        """Return conversations in which a call has just stopped waiting without a decision from the conversation."""
        since = time.monotonic() - RECENT_SECONDS
        self._closed_at = {key: at for key, at in self._closed_at.items() if at > since}
        return self._closed_at

    async def send_request(self, pending: PendingApproval, item: InboxItem) -> None:
        """Show a call to the people in its conversation, unless it has been shown there before."""
        if pending.complete:
            return
        capabilities = self._channels[item.channel].capabilities
        hide = not pending.decidable and not item.message.direct
        buttons = capabilities.buttons and pending.decidable
        instructions = [] if capabilities.cards else [notices.use_buttons(format_time(pending.row.expires))]
        texts, complete = render_request(
            pending,
            hide_arguments=hide,
            limit=capabilities.max_length,
            length=capabilities.length,
            instructions=instructions if buttons else None,
            show_code=not (capabilities.cards and buttons),
        )
        if earlier := await self._earlier_codes(pending, item):
            texts = [notices.asking_again(earlier), *texts]
        pending.messages = []
        for number, text in enumerate(texts):
            sent = await self._outbox.reply(item.key, item.channel, [], [text], token=f"{pending.row.id} {number}")
            self._outbox.track(sent)  # before the next await, which may send them
            pending.messages += sent
            complete = complete and bool(sent)
        pending.complete = complete
        self._notify_channel(item.key)

    async def _earlier_codes(self, pending: PendingApproval, item: InboxItem) -> list[str]:
        """Return codes of the calls that an earlier run for the same message requested before a restart."""
        if not item.tries or self.store is None:
            return []
        row = pending.row
        rows = await in_thread(self.store.rows, owner=row.owner, limit=HISTORY_LIMIT)
        return [
            full_code(item.key, old.id)[:MIN_CODE_LENGTH]
            for old in rows
            if (old.session_id, old.correlation_id) == (row.session_id, row.correlation_id)
            and old.root_id != row.root_id
            and old.status in ("pending", "cancelled")
        ]

    async def send_outcome(self, pending: PendingApproval, will_ask_again: bool) -> None:
        """Report the outcome of a call, unless the reply to a decision in this conversation has reported it."""
        if pending.decided or not pending.messages or self.store is None:
            return
        try:
            row = await in_thread(self.store.find, pending.row.id)
            if row.status == "pending":
                return
            text = notices.WILL_ASK_AGAIN if will_ask_again and row.status == "cancelled" else outcome(row)
            self._show_outcome(pending, text, row.by)
            channel = address_of(pending.key).channel
            if not (pending.decidable and self._channels[channel].capabilities.cards):
                await self._outbox.reply(pending.key, channel, [], [f"{pending.code}: {text}"])
        except LeaseLostError:
            pass
        except Exception as error:  # noqa: BLE001 - the run continues without this notice
            log.error("%s: the outcome of a call cannot be reported: %s", label_of(pending.key), describe(error))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that continues when its creator is cancelled; :meth:`close` cancels it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _notify_channel(self, key: str) -> None:
        """Pass the calls that people can decide about to the channel, if it has a method for that."""
        prompts = [
            prompt_of(pending)
            for pending in self._pending.get(key, {}).values()
            if pending.decidable and pending.complete
        ]
        self._call_channel(key, "approvals_changed", prompts)

    def _show_outcome(self, pending: PendingApproval, text: str, by: str) -> None:
        """Pass the outcome of a call that was shown to the channel, if it has a method for that."""
        if pending.messages:
            self._call_channel(pending.key, "approval_closed", ApprovalOutcome(pending.messages[-1].token, text, by))

    def _call_channel(self, key: str, method: str, value: object) -> None:
        address = address_of(key)
        callback: Any = getattr(self._channels.get(address.channel), method, None)
        if callback is None:
            return
        try:
            callback(address, value)
        except Exception as error:  # noqa: BLE001 - people can still use the commands
            log.debug("%s: %s failed: %s", address.channel, method, describe(error))


class RunApprovals:
    """Approvals of one run. Pass its ``hook`` to the run."""

    def __init__(
        self,
        approvals: Approvals,
        store: ApprovalStore,
        item: InboxItem,
        set_waiting: Callable[[bool], None],
        was_interrupted: Callable[[], bool],
        *,
        durable: bool,
    ) -> None:
        self._approvals = approvals
        self._durable = durable
        self._item = item
        self._set_waiting = set_waiting
        self._was_interrupted = was_interrupted
        self._send_lock = asyncio.Lock()
        self._waiting = 0
        self._closing: list[asyncio.Task[None]] = []
        owner = channel_owner(item.channel)
        self.hook = ApprovalsHook(
            store,
            seconds=approvals.seconds,
            owner=owner,
            asked_by=sender_id(item),
            hold_seconds=HOLD_SECONDS,
            notify=self._request,
        )

    async def wait_closed(self) -> None:
        """Wait until all outcomes are reported."""
        if self._closing:
            await asyncio.wait(self._closing)

    async def _request(self, row: ApprovalRow) -> None:
        """Request an approval and wait. The hook cancels this call once there is a decision."""
        pending = self._approvals.add(self._item, row)
        sending = self._approvals.spawn(self._send_request(pending))
        self._waiting += 1
        if self._waiting == 1:
            self._set_waiting(True)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._set_waiting(False)
            self._closing.append(self._approvals.spawn(self._close(pending, sending)))

    async def _send_request(self, pending: PendingApproval) -> None:
        try:
            async with self._send_lock:
                await self._approvals.send_request(pending, self._item)
        except Exception as error:  # noqa: BLE001 - an operator can still decide
            label = label_of(self._item.key)
            log.error("%s: a request for approval cannot be shown in the conversation: %s", label, describe(error))

    async def _close(self, pending: PendingApproval, sending: asyncio.Task[None]) -> None:
        await asyncio.wait([sending])
        if self._durable and await self._approvals.is_waiting(pending):
            return  # the run was suspended, and the call can be decided without it
        self._approvals.remove(pending)
        await self._approvals.send_outcome(pending, self._was_interrupted())


def channel_owner(channel: str) -> str:
    """Return owner of the calls made through a channel, and of the permissions given there."""
    return f"channel:{channel}"


def sender_id(item: InboxItem) -> str:
    """Return the id of the sender of a message, in decisions and in an approval policy."""
    return f"{item.channel}:{item.message.sender}"


def outcome(row: ApprovalRow) -> str:
    """Return the outcome of a call as a sentence."""
    return notices.outcome(one_line(row.tool), row.status, one_line(row.by), one_line(row.message))


def full_code(key: str, id: str) -> str:
    """Return the full code of a call, which differs by conversation. People see only its beginning."""
    return "".join(_CODE_LETTERS[byte % 32] for byte in sha256(f"{key} {id}".encode()).digest())


def short_code(key: str, id: str, others: Iterable[PendingApproval]) -> str:
    """Return the shortest beginning of a code that differs from the codes of the other pending calls."""
    code, size = full_code(key, id), MIN_CODE_LENGTH
    while any(full_code(key, other.row.id).startswith(code[:size]) for other in others):
        size += 1
    return code[:size]


def _normalized(code: str) -> str:
    return code.strip("`.:,").upper()


def _parse_scope(rest: str) -> dict[str, Any]:
    """Parse the words after ``/approve CODE``: a scope, and patterns for arguments."""
    try:
        words = shlex.split(rest)
    except ValueError:
        return {"problem": notices.APPROVE_USAGE}
    scope = words.pop(0).lower() if words else "once"
    pattern = {key: value for key, _, value in (word.partition("=") for word in words)}
    if scope not in _SCOPES or not all(pattern) or not all("=" in word for word in words):
        return {"problem": notices.APPROVE_USAGE}
    if pattern and scope == "once":
        return {"problem": notices.APPROVE_USAGE}
    return {"remember": scope, "pattern": pattern or None}


def _parse_arguments(rest: str) -> dict[str, Any]:
    """Parse the JSON after ``/edit CODE``."""
    try:
        return {"arguments": msgspec.json.decode(rest, type=dict[str, Any])}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {"problem": notices.EDIT_USAGE}


def render_request(
    pending: PendingApproval,
    *,
    hide_arguments: bool = False,
    limit: int | None = None,
    length: Callable[[str], int] = len,
    instructions: Sequence[str] | None = None,
    show_code: bool = True,
) -> tuple[list[str], bool]:
    """Render the messages that show a call to people, and return whether they contain all of its arguments.

    Most of the text comes from a model. So none of it can start a new line or close the code block around it, and
    invisible characters are escaped as in JSON. Arguments are never cut: they continue in the next message.

    Args:
        pending: the call.
        hide_arguments: leave the arguments out.
        limit: the longest message, as measured by ``length``.
        length: measures a text as the platform does.
        instructions: lines that say how to decide about a call that is shown completely; by default with the commands
            of a conversation.
        show_code: begin with the code of the call.
    """
    row, code = pending.row, pending.code
    head = f"{one_line(row.agent) or 'the agent'} wants to call `{one_line(row.tool)}`"
    head = f"{code}: {head}" if show_code else head
    tail = "\n".join([*_reasons(row), *_instructions(pending)])
    arguments = visible_json(row.arguments)
    if hide_arguments:
        return [f"{head}.\n{tail}"], False
    if len(arguments) > MAX_ARGUMENTS:
        too_long = f"Its arguments have {len(arguments):,} characters, too many to show here"
        return [f"{head}. {too_long}: an operator can read them and decide (`hookline approvals`).\n{tail}"], False
    if instructions is not None:
        tail = "\n".join([*_reasons(row), *instructions])
    whole = f"{head} with\n```\n{arguments}\n```\n{tail}"
    if limit is None or length(whole) <= limit:
        return [whole], True
    parts = _split_arguments(arguments, max(_PART_LABEL, limit - _PART_LABEL), length)
    count = len(parts)
    middle = [f"{code}, {i} of {count}:\n```\n{part}\n```" for i, part in enumerate(parts, 1)]
    return [f"{head}, with arguments in {count} parts:", *middle, f"{code}, `{one_line(row.tool)}`:\n{tail}"], True


def render_line(pending: PendingApproval, *, hide_arguments: bool) -> str:
    """Render a pending call as one line."""
    row = pending.row
    arguments = "" if hide_arguments else f" {visible_json(row.arguments, None)}"
    if len(arguments) > _MAX_LISTED:
        arguments = f"{arguments[:_MAX_LISTED]}… (cut; the request above has all of it)"
    return f"{pending.code}: {one_line(row.tool)}{arguments}, until {format_time(row.expires)}"


def prompt_of(pending: PendingApproval) -> ApprovalPrompt:
    """Return a call that was shown completely, for a channel with buttons."""
    row = pending.row
    return ApprovalPrompt(
        pending.code,
        pending.messages[-1].token,
        row.digest,
        row.expires,
        row.agent,
        row.tool,
        visible_json(row.arguments),
        tuple(_questions(row)),
        row.who_is_needed,
        row.needed + len(row.approved_by) == 1,
    )


def _questions(row: ApprovalRow) -> list[str]:
    lines = []
    for question in row.questions:
        why = f" ({one_line(question.reason)})" if question.reason else ""
        lines.append(f"{one_line(question.hook) or 'A hook'} asks: {one_line(question.text)}{why}")
    return lines


def _reasons(row: ApprovalRow) -> list[str]:
    lines = _questions(row)
    return [*lines, one_line(row.who_is_needed)] if row.who_is_needed else lines


def _instructions(pending: PendingApproval) -> list[str]:
    code, until = pending.code, format_time(pending.row.expires)
    if not pending.decidable:
        return [f"An operator must approve it by {until} (`hookline approvals`); otherwise it does not run."]
    return [
        f"Answer by {until}: `/approve {code}`, or `/deny {code} reason`. Without an answer it does not run.",
        f"If no other call is waiting, yes or no is enough. `/approve {code} session` allows it for this conversation.",
    ]


def format_time(at: float) -> str:
    """Format a time with its zone, and with the date if it is not today."""
    when = datetime.fromtimestamp(at).astimezone()
    today = when.date() == datetime.fromtimestamp(time.time()).date()
    return when.strftime("%H:%M %Z" if today else "%Y-%m-%d %H:%M %Z").strip()


def _split_arguments(text: str, room: int, length: Callable[[str], int]) -> Sequence[str]:
    """Split a text between lines. A cut inside a line neither loses a space nor closes the code block."""
    pieces: list[str] = []
    piece = ""
    for line in text.split("\n"):
        longer = f"{piece}\n{line}" if piece else line
        if length(longer) <= room:
            piece = longer
            continue
        if piece:
            pieces.append(piece)
        *full, piece = _split_line(line, room, length)
        pieces += full
    return [*pieces, piece]


def _split_line(rest: str, room: int, length: Callable[[str], int]) -> Iterator[str]:
    while length(rest) > room:
        end = _cut_position(rest, room - 2 * len("\\u0020"), length)
        piece, rest = rest[:end], rest[end:]
        yield piece[:-1] + "\\u0020" if piece.endswith(" ") else piece
        rest = f"\\u{ord(rest[0]):04x}{rest[1:]}" if rest[0] in " `" else rest
    yield rest


def _cut_position(line: str, room: int, length: Callable[[str], int]) -> int:
    end = min(len(line) - 1, max(room, 1))
    while end > 1 and length(line[:end]) > room:
        end -= max(1, (length(line[:end]) - room) // 2)
    fits = max(1, end)
    while end > max(1, fits - 20) and (is_inside_character(line, end) or _is_inside_escape(line, end)):
        end -= 1
    return end if not is_inside_character(line, end) else fits


def _is_inside_escape(line: str, at: int) -> bool:
    """Whether a position is inside a JSON escape sequence."""
    start = line.rfind("\\", max(0, at - 5), at)
    if start < 0:
        return False
    before = start
    while before > 0 and line[before - 1] == "\\":
        before -= 1
    if (start - before) % 2:  # the second backslash of an escaped backslash
        return False
    return at < start + (6 if line[start + 1 : start + 2] == "u" else 2)
