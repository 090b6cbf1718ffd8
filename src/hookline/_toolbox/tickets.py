"""Tools that let agents work on a board of tickets."""

from __future__ import annotations

import threading
from contextlib import suppress
from secrets import token_hex
from typing import Any, Literal

from .._base.workers import in_thread
from .._kernel.errors import CallRefusedError, HookError, RegistrationError
from ..stores.errors import StoreError
from ..stores.ticket_points import AFTER_TICKET_REVISION, BEFORE_TICKET_COMPLETE, Ticket
from ..stores.tickets import (
    COLUMNS,
    MAX_NAME,
    OPEN_COLUMNS,
    TIERS,
    TicketBoard,
    TicketChange,
    TicketError,
    TicketRow,
    shorten,
)
from ..tools._tool import Tool

PREFIX = "ticket_"
PAGE = 20
"""Number of tickets per page of ``ticket_list``."""
_MAX_ENTRIES, _MAX_ENTRY_TEXT = 10, 500
_NO_REASON = "no reason was given"


class ApprovalChecks:
    """The key of ``ctx.own_state`` under which guards store the boards and tickets that they have checked."""


def actor_of(ctx: Any) -> str:
    """Return the name of the agent, or of its personality, for the history of a ticket."""
    return ctx.session.personality_id or ctx.agent_name or "agent"


def ticket_tools(board: TicketBoard, *, tier: str = "auto") -> tuple[Tool, ...]:
    """Make the tools that let an agent work on a board of tickets.

    They are ``ticket_create``, ``ticket_list``, ``ticket_show``, ``ticket_start``, ``ticket_complete``,
    ``ticket_comment`` and ``ticket_release``. ``ticket_complete`` fires ``before_ticket_complete``; a hook that claims
    there rejects the completion.

    Args:
        board: the board.
        tier: the tier of tickets that agents create; they cannot choose it.

    Raises:
        RegistrationError: ``board`` is not a board, or ``tier`` is unknown.

    Example::

        board = TicketBoard("tickets.db")
        agent = Agent("bob", llm="local", tools=ticket_tools(board), hooks=[TicketRules(board)])
    """
    if not isinstance(board, TicketBoard):
        raise RegistrationError(f'ticket_tools needs a board such as TicketBoard("tickets.db"), not {board!r:.80}')
    if tier not in TIERS:
        raise RegistrationError(f"tier= must be one of {', '.join(TIERS)}, not {tier!r:.80}")

    def ticket_create(
        ctx: Any, title: str, criteria: list[str] | None = None, description: str = "", assignee: str = ""
    ) -> str:
        """Create a ticket for work to be done.

        Args:
            ctx: the run
            title: the work, in a few words
            criteria: conditions that must be true when the work is done, one each
            description: more details
            assignee: who should do the work; leave it empty for anybody
        """
        made = board.create(
            title,
            by=actor_of(ctx),
            description=description,
            criteria=criteria or (),
            assignee=assignee,
            tier=tier,
            run_id=ctx.run_id,
        )
        return f"Created {ticket_line(made)}"

    def ticket_list(
        ctx: Any,
        column: Literal["open", "todo", "running", "needs_revision", "review", "done", "cancelled", "all"] = "open",
        mine: bool = False,
        search: str = "",
        page: int = 1,
    ) -> str:
        """List tickets.

        Args:
            ctx: the run
            column: the column to list
            mine: only tickets that are assigned to you
            search: words to search for
            page: 1 for the first tickets, 2 for the next
        """
        columns = {"open": OPEN_COLUMNS, "all": COLUMNS, "running": ("running", "verifying")}.get(column, (column,))
        owner, page = actor_of(ctx) if mine else None, max(1, page)
        left = board.count(columns, assignee=owner, text=search) - PAGE * page
        found = board.list(columns, assignee=owner, text=search, limit=PAGE, offset=PAGE * (page - 1))
        more = [f"({left} more: page={page + 1})"] if left > 0 else []
        if not found:
            what = {"open": "open tickets", "all": "tickets"}.get(column, f"tickets in {column}")
            whose, which = " of yours" if mine else "", f" with {search!r:.80}" if search else ""
            return f"There are no {what}{whose}{which}{f' on page {page}' if page > 1 else ''}."
        return "\n".join([*map(ticket_line, found), *more])

    def ticket_show(id: str) -> str:
        """Show a ticket: its description, criteria and history.

        Args:
            id: the ticket, such as T-1
        """
        return ticket_text(board, board.get(id))

    def ticket_start(ctx: Any, id: str) -> str:
        """Take a ticket and start to work on it.

        Args:
            ctx: the run
            id: the ticket, such as T-1
        """
        _require_approval_check(ctx, board, board.get(id))
        ticket = board.start(id, by=actor_of(ctx), run_id=ctx.run_id)
        return f"{ticket_text(board, ticket)}\nIt is yours now. Complete it when everything is done."

    def ticket_comment(ctx: Any, id: str, text: str) -> str:
        """Write a comment on a ticket, for later readers.

        Args:
            ctx: the run
            id: the ticket, such as T-1
            text: the comment
        """
        return f"Commented on {ticket_line(board.comment(id, text, by=actor_of(ctx), run_id=ctx.run_id))}"

    def ticket_release(ctx: Any, id: str, reason: str = "") -> str:
        """Give up a ticket that is yours, so that somebody else can do it.

        Args:
            ctx: the run
            id: the ticket, such as T-1
            reason: why you give it up
        """
        return f"Released {ticket_line(board.release(id, reason, by=actor_of(ctx), run_id=ctx.run_id))}"

    async def ticket_complete(ctx: Any, id: str, summary: str) -> str:
        """Report that a ticket is done. It may be checked and returned to you.

        Args:
            ctx: the run
            id: the ticket, such as T-1
            summary: what you did, and how each criterion is met
        """
        return await _complete(ctx, board, id, summary)

    return (
        Tool(ticket_create, effects=[]),
        Tool(ticket_list, effects=[]),
        Tool(ticket_show, effects=[]),
        Tool(ticket_start, effects=[]),
        Tool(ticket_complete, effects=[]),
        Tool(ticket_comment, effects=[]),
        Tool(ticket_release, effects=[]),
    )


async def _complete(ctx: Any, board: TicketBoard, id: str, summary: str) -> str:
    """Hold a ticket, let the hooks judge its completion, and settle it. If that fails, the ticket is running again."""
    who, token, given_up = actor_of(ctx), token_hex(8), threading.Event()
    by = {"by": who, "run_id": ctx.run_id}

    def hold() -> TicketRow:
        ticket = board.get(id)
        _require_approval_check(ctx, board, ticket)
        board.hold(id, summary, hold=token, **by)
        if given_up.is_set():  # the call was cancelled meanwhile
            give_back("cancelled")
        return board.get(id)

    def give_back(why: str, by: str = who) -> None:
        with suppress(StoreError):  # if this fails, the ticket is running again once the hold expires
            board.release_hold(id, token, why, by=by, run_id=ctx.run_id)

    try:
        ticket = await in_thread(hold)
        payload = Ticket(ticket.id, ticket.summary, ticket.criteria, ticket.tier, assignee=ticket.assignee)
        try:
            verdict = await ctx.fire(BEFORE_TICKET_COMPLETE, payload)
        except HookError as error:
            await in_thread(give_back, f"the check failed: {error}", _hook(error.hook))
            raise TicketError(
                f"{ticket.id} is not done: the check failed, so the ticket is still running. "
                f"Try again; if that fails too, leave a comment and report it. ({error})"
            ) from error
        if not verdict.handled:
            ticket = await in_thread(board.accept, id, token, **by)
            return (
                f"{ticket.id} is done." if ticket.column == "done" else f"{ticket.id} is in review: you are finished."
            )
        reason = verdict.reason or (verdict.value or {}).get("reason")
        rejected_by = {"by": _hook(verdict.hook), "run_id": ctx.run_id}
        ticket = await in_thread(board.reject, id, token, reason or _NO_REASON, **rejected_by)
    except TicketError:
        raise  # the ticket is not held
    except Exception as error:
        await in_thread(give_back, str(error))
        raise
    except BaseException:
        given_up.set()
        give_back("cancelled")  # not in a thread: a cancelled task may not be able to wait for one
        raise
    ratio = await in_thread(board.success_ratio, ticket.assignee)
    try:
        await ctx.fire(AFTER_TICKET_REVISION, payload.replace(reason=ticket.reason, success_ratio=ratio))
    except HookError as error:  # the ticket stays rejected; a hook that fails closed fails the run
        raise CallRefusedError(str(error), status="failed", hook=error.hook) from error
    return (
        f"{ticket.id} is NOT done. It was rejected: {ticket.reason}\n"
        "Do what is missing, then call ticket_complete again with a summary that says how each criterion is met."
    )


def _hook(name: str) -> str:
    """Return the name of a hook for the history of a ticket."""
    return shorten(f"hook:{name}", MAX_NAME)


def _require_approval_check(ctx: Any, board: TicketBoard, ticket: TicketRow) -> None:
    """Require that a guard has asked for approval if the ticket's tier needs it.

    Without this check, a missing guard would mean that no approval is needed.
    """
    seen: set[tuple[str, str]] = ctx.own_state(ApprovalChecks, set)
    if ticket.tier != "ask" or (board.path, ticket.id) in seen:
        return
    if any(path == board.path for path, _ in seen):
        raise TicketError(f"{ticket.id} needs approval, and was created during this call: call again")
    raise TicketError(
        f"{ticket.id} needs approval, but no hook asks for it: add TicketRules(board) to the agent's hooks"
    )


def ticket_line(ticket: TicketRow) -> str:
    """Return a ticket in one line."""
    owner = f", {ticket.assignee}" if ticket.assignee else ""
    return f"{ticket.id} [{ticket.column}{owner}] {ticket.title}"


def ticket_text(board: TicketBoard, ticket: TicketRow) -> str:
    """Return the details of a ticket that an agent needs to work on it."""
    parts = [ticket_line(ticket)]
    if ticket.description:
        parts.append(ticket.description)
    if ticket.criteria:
        parts += ["Criteria:", *(f"{number}. {text}" for number, text in enumerate(ticket.criteria, 1))]
    if ticket.reason:
        parts.append(f"It was rejected: {ticket.reason}")
    entries = [entry for entry in board.history(ticket.id) if entry.text]
    if entries:
        hidden = f" (the last {_MAX_ENTRIES} of {len(entries)})" if len(entries) > _MAX_ENTRIES else ""
        parts += [f"History{hidden}:", *map(_entry, entries[-_MAX_ENTRIES:])]
    return "\n".join(parts)


def _entry(entry: TicketChange) -> str:
    text = " ".join(entry.text.split())
    return f"- {entry.what} by {entry.by}: {text[:_MAX_ENTRY_TEXT]}{'…' if len(text) > _MAX_ENTRY_TEXT else ''}"
