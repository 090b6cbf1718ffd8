"""``hookline approvals --watch``: stay at the terminal and decide about calls as they come."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from .._base.workers import in_thread
from ..stores.approvals import ApprovalRow, DecisionRefusedError
from ..stores.errors import StoreError
from .approval_answers import asked, called, decided_text, person
from .approval_views import drawn, questions_of
from .exits import COMPLETED
from .terminal import Terminal
from .text import arguments_text, printable, short_id
from .view import is_capable

if TYPE_CHECKING:
    from ..stores.approvals import ApprovalStore

EVERY = 0.5
"""Seconds between two looks."""


def watch(store: ApprovalStore) -> int:
    """Show what waits, and ask about each call in turn, until Ctrl-C; without a terminal, a line for each call."""
    store.open()
    terminal = Terminal.find() if sys.stdout.isatty() else None
    try:
        asyncio.run(_tell(store) if terminal is None else _ask(store, terminal))
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    return COMPLETED


async def _tell(store: ApprovalStore) -> None:
    known: set[str] = set()
    while True:
        rows = await _waiting(store)
        for row in rows:
            if row.id not in known:
                call = f"{short_id(row.id)}  {row.tool} {arguments_text(row.arguments)}  {questions_of(row)}"
                sys.stdout.write(f"{printable(call, keep='')}\n")
                sys.stdout.flush()
        known = {row.id for row in rows}
        await asyncio.sleep(EVERY)


async def _ask(store: ApprovalStore, terminal: Terminal) -> None:
    skipped: set[str] = set()
    while True:
        row = await _next(store, skipped)
        if await _asked(store, terminal, row):
            continue
        skipped.add(row.id)


async def _next(store: ApprovalStore, skipped: set[str]) -> ApprovalRow:
    """The oldest call that waits and was not skipped; what there is meanwhile is on the screen."""
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(highlight=False), auto_refresh=False, transient=True)
    moving = is_capable(sys.stdout.isatty())
    shown = False
    try:
        while True:
            rows = await _waiting(store)
            skipped.intersection_update(row.id for row in rows)
            for row in rows:
                if row.id not in skipped:
                    return row
            if moving:
                live.start()
                live.update(drawn(rows[::-1], len(skipped), store.path), refresh=True)
            elif not shown:
                sys.stdout.write("waiting for calls; Ctrl-C leaves\n")
                sys.stdout.flush()
            shown = True
            await asyncio.sleep(EVERY)
    finally:
        live.stop()


async def _asked(store: ApprovalStore, terminal: Terminal, row: ApprovalRow) -> bool:
    """Ask about one call, unless somebody else decides first; whether it is done with."""
    terminal.show(called(row))
    asking, gone = asyncio.ensure_future(_decide(store, terminal, row)), asyncio.ensure_future(_gone(store, row))
    try:
        await asyncio.wait([asking, gone], return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        asking.cancel()
        await asyncio.wait([asking])
        now = gone.result()
        by = f" by {now.by}" if now.by else ""
        terminal.show(printable(f"{row.tool} was {now.status}{by}", keep="") + "\n")
        return True
    finally:
        for task in (asking, gone):
            task.cancel()
        await asyncio.wait([asking, gone])


async def _decide(store: ApprovalStore, terminal: Terminal, row: ApprovalRow) -> bool:
    while True:
        said = await asked(terminal, skips=True)
        if said.decision == "skip":
            return False
        try:
            done = store.decide(
                row.id, decision=said.decision, digest=row.digest, by=person(), message=said.message,
                arguments=said.arguments, remember=said.remember, pattern=said.pattern,
            )  # fmt: skip
        except DecisionRefusedError as refused:
            terminal.show(f"That does not count: {printable(str(refused), keep='')}\n")
            if refused.code != "bad":
                return True
        except StoreError as error:
            terminal.show(f"That could not be kept: {printable(str(error), keep='')}\n")
        else:
            terminal.show(f"{decided_text(done, said.pattern)}\n")
            return True


async def _gone(store: ApprovalStore, row: ApprovalRow) -> ApprovalRow:
    """The call, once it does not wait any more."""
    while True:
        await asyncio.sleep(EVERY)
        now: ApprovalRow = await in_thread(store.find, row.id)
        if now.status != "pending":
            return now


async def _waiting(store: ApprovalStore) -> list[ApprovalRow]:
    """The oldest first."""
    rows: list[ApprovalRow] = await in_thread(store.rows, status="pending")
    return rows[::-1]
