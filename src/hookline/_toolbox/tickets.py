"""Tools with which agents work on a board of tickets."""

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
"""How many tickets a model is shown at once."""
_SHOWN, _TOLD = 10, 500
_NO_REASON = "no reason was given"


class Asking:
    """Its id is a key in ``ctx.hook_state``: there guards put the boards and tickets that they have looked at."""


def who_acts(ctx: Any) -> str:
    """Who works on a ticket: the personality that the agent has taken on, or the agent."""
    return ctx.session.personality_id or ctx.agent_name or "agent"


def ticket_tools(board: TicketBoard, *, tier: str = "auto") -> tuple[Tool, ...]:
    """``ticket_create``, ``ticket_list``, ``ticket_show``, ``ticket_start``, ``ticket_complete`` and two more.

    The others are ``ticket_comment`` and ``ticket_release``. Who acts is the agent, or its personality.
    ``ticket_complete`` fires ``before_ticket_complete``; a claim there rejects the completion.

    Args:
        board: the board.
        tier: the tier of the tickets that agents create; they cannot choose it.

    Raises:
        RegistrationError: no board, or no tier.
    """
    if not isinstance(board, TicketBoard):
        raise RegistrationError(f'ticket_tools takes a board: TicketBoard("tickets.db"), not {board!r:.80}')
    if tier not in TIERS:
        raise RegistrationError(f"tier is one of {', '.join(TIERS)}, not {tier!r:.80}")

    def ticket_create(
        ctx: Any, title: str, criteria: list[str] | None = None, description: str = "", assignee: str = ""
    ) -> str:
        """Create a ticket: work to be done.

        Args:
            ctx: the run
            title: what is to be done, in a few words
            criteria: what must be true when it is done, one fact each
            description: more about it
            assignee: who is to do it; leave it empty for anybody
        """
        made = board.create(
            title, by=who_acts(ctx), description=description, criteria=criteria or (), assignee=assignee, tier=tier,
            run_id=ctx.run_id,
        )  # fmt: skip
        return f"Created {line(made)}"

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
            column: which ones
            mine: only those that are assigned to you
            search: words to look for
            page: 1 for the first tickets, 2 for the next
        """
        columns = {"open": OPEN_COLUMNS, "all": COLUMNS, "running": ("running", "verifying")}.get(column, (column,))
        owner, page = who_acts(ctx) if mine else None, max(1, page)
        left = board.count(columns, assignee=owner, text=search) - PAGE * page
        found = board.list(columns, assignee=owner, text=search, limit=PAGE, offset=PAGE * (page - 1))
        more = [f"({left} more: page={page + 1})"] if left > 0 else []
        if not found:
            what = {"open": "open tickets", "all": "tickets"}.get(column, f"tickets in {column}")
            whose, which = " of yours" if mine else "", f" with {search!r:.80}" if search else ""
            return f"There are no {what}{whose}{which}{f' on page {page}' if page > 1 else ''}."
        return "\n".join([*map(line, found), *more])

    def ticket_show(id: str) -> str:
        """Show a ticket: what is to be done, its criteria, and what happened so far.

        Args:
            id: the ticket, such as T-1
        """
        return told(board, board.get(id))

    def ticket_start(ctx: Any, id: str) -> str:
        """Take a ticket and start to work on it.

        Args:
            ctx: the run
            id: the ticket, such as T-1
        """
        _need_asking(ctx, board, board.get(id))
        ticket = board.start(id, by=who_acts(ctx), run_id=ctx.run_id)
        return f"{told(board, ticket)}\nYou have it now. Complete it when all of it is done."

    def ticket_comment(ctx: Any, id: str, text: str) -> str:
        """Write a comment on a ticket, for whoever reads it later.

        Args:
            ctx: the run
            id: the ticket, such as T-1
            text: the comment
        """
        return f"Commented on {line(board.comment(id, text, by=who_acts(ctx), run_id=ctx.run_id))}"

    def ticket_release(ctx: Any, id: str, reason: str = "") -> str:
        """Give up a ticket that you have, so that somebody else can do it.

        Args:
            ctx: the run
            id: the ticket, such as T-1
            reason: why
        """
        return f"Released {line(board.release(id, reason, by=who_acts(ctx), run_id=ctx.run_id))}"

    async def ticket_complete(ctx: Any, id: str, summary: str) -> str:
        """Say that a ticket is done. It may be checked, and come back to you.

        Args:
            ctx: the run
            id: the ticket, such as T-1
            summary: what you did, and how each criterion is met
        """
        return await _complete(ctx, board, id, summary)

    return (
        Tool(ticket_create), Tool(ticket_list), Tool(ticket_show), Tool(ticket_start), Tool(ticket_complete),
        Tool(ticket_comment), Tool(ticket_release),
    )  # fmt: skip


async def _complete(ctx: Any, board: TicketBoard, id: str, summary: str) -> str:
    """Hold a ticket, have the completion judged, and settle it; whatever breaks that off gives it back."""
    who, token, given_up = who_acts(ctx), token_hex(8), threading.Event()
    by = {"by": who, "run_id": ctx.run_id}

    def hold() -> TicketRow:
        ticket = board.get(id)
        _need_asking(ctx, board, ticket)
        board.hold(id, summary, hold=token, **by)
        if given_up.is_set():  # nobody waits for it any more
            give_back("cancelled")
        return board.get(id)

    def give_back(why: str, by: str = who) -> None:
        with suppress(StoreError):  # then it is running again when the hold has lasted too long
            board.release_hold(id, token, why, by=by, run_id=ctx.run_id)

    try:
        ticket = await in_thread(hold)
        payload = Ticket(ticket.id, ticket.summary, ticket.criteria, ticket.tier, assignee=ticket.assignee)
        try:
            verdict = await ctx.fire(BEFORE_TICKET_COMPLETE, payload)
        except HookError as error:
            await in_thread(give_back, f"the check failed: {error}", _hook(error.hook))
            raise TicketError(
                f"{ticket.id} is not done: it could not be checked, so it is still running. "
                f"Try once more; if that fails too, leave a comment and say so. ({error})"
            ) from error
        if not verdict.handled:
            ticket = await in_thread(board.accept, id, token, **by)
            return (
                f"{ticket.id} is done." if ticket.column == "done" else f"{ticket.id} is in review: you are finished."
            )
        reason = verdict.reason or (verdict.value or {}).get("reason")
        told = {"by": _hook(verdict.hook), "run_id": ctx.run_id}
        ticket = await in_thread(board.reject, id, token, reason or _NO_REASON, **told)
    except TicketError:
        raise  # it is not held, or not any more
    except Exception as error:
        await in_thread(give_back, str(error))
        raise
    except BaseException:
        given_up.set()
        give_back("cancelled")  # not in a thread: a task that is cancelled may not get to wait for one
        raise
    ratio = await in_thread(board.success_ratio, ticket.assignee)
    try:
        await ctx.fire(AFTER_TICKET_REVISION, payload.replace(reason=ticket.reason, success_ratio=ratio))
    except HookError as error:  # the ticket is rejected all the same; a closed failure there fails the run
        raise CallRefusedError(str(error), status="failed", hook=error.hook) from error
    return (
        f"{ticket.id} is NOT done. It was rejected: {ticket.reason}\n"
        "Do what is missing, then call ticket_complete again with a summary that says how each criterion is met."
    )


def _hook(name: str) -> str:
    """A hook, as histories name it."""
    return shorten(f"hook:{name}", MAX_NAME)


def _need_asking(ctx: Any, board: TicketBoard, ticket: TicketRow) -> None:
    """That somebody asked for approval before this: a tier that nobody looks after may not mean a yes."""
    seen = ctx.hook_state.get(id(Asking), ())
    if ticket.tier != "ask" or (board.path, ticket.id) in seen:
        return
    if any(path == board.path for path, _ in seen):
        raise TicketError(f"{ticket.id} needs approval, and is newer than this call: call once more")
    raise TicketError(
        f"{ticket.id} needs approval, and nobody asks for it: give the agent TicketRules(board) as a hook"
    )


def line(ticket: TicketRow) -> str:
    """A ticket on one line."""
    owner = f", {ticket.assignee}" if ticket.assignee else ""
    return f"{ticket.id} [{ticket.column}{owner}] {ticket.title}"


def told(board: TicketBoard, ticket: TicketRow) -> str:
    """Everything about a ticket that matters to whoever works on it."""
    parts = [line(ticket)]
    if ticket.description:
        parts.append(ticket.description)
    if ticket.criteria:
        parts += ["Criteria:", *(f"{number}. {text}" for number, text in enumerate(ticket.criteria, 1))]
    if ticket.reason:
        parts.append(f"It was rejected: {ticket.reason}")
    entries = [entry for entry in board.history(ticket.id) if entry.text]
    if entries:
        hidden = f" (the last {_SHOWN} of {len(entries)})" if len(entries) > _SHOWN else ""
        parts += [f"What was said so far{hidden}:", *map(_entry, entries[-_SHOWN:])]
    return "\n".join(parts)


def _entry(entry: TicketChange) -> str:
    text = " ".join(entry.text.split())
    return f"- {entry.what} by {entry.by}: {text[:_TOLD]}{'…' if len(text) > _TOLD else ''}"
