"""``hookline approvals``: list and decide tool calls that wait for approval."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.console import Group as RichGroup
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .._base.workers import in_thread
from ..config.errors import ConfigError
from ..config.sources import Configuration
from ..stores.approvals import ApprovalRow, DecisionRefusedError, GrantRow
from ..stores.errors import StoreError
from .approval_prompt import ask_decision, current_user, decision_text, describe_row
from .errors import COMPLETED
from .help import Command, ListingGroup
from .options import AsJson, with_settings
from .output import console, print_facts, print_parts, print_table, short_path, state_text, write_json
from .terminal import Terminal, can_move_cursor
from .text import ID_LENGTH, arguments_text, counted, indent_overflow, printable, rough_duration, short, short_id

if TYPE_CHECKING:
    from ..stores.approvals import ApprovalStore


EPILOG = """
Tool calls that need approval wait until a person decides, at the terminal of the run or with these commands. Without a
decision they are denied. IDs may be shortened.

Examples:
  hookline approvals
  hookline approvals --all
  hookline approvals --watch
  hookline approvals approve 3f2a
  hookline approvals approve 3f2a --session --pattern path='notes/*'
  hookline approvals deny 3f2a "Use the other file."
  hookline approvals edit 3f2a '{"path": "notes/today.md"}'
"""

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the call, or its beginning.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=ListingGroup,
        rich_markup_mode=None,
        help="Approve or deny tool calls that wait for approval.",
        epilog=EPILOG,
    )
    commands: dict[str, Callable[..., int]] = {
        "list": list_calls,
        "show": show_call,
        "approve": approve,
        "deny": deny,
        "edit": edit,
        "grants": list_grants,
        "revoke": revoke,
    }
    for name, function in commands.items():
        group.command(name, cls=Command)(with_settings("approval_file", "database", "debug")(function))
    app.add_typer(group, name="approvals")


def list_calls(
    config: Configuration,
    all: Annotated[bool, typer.Option("--all", help="Include calls that were decided.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep running, and ask about each new call.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most N calls.")] = 100,
    json: AsJson = False,
) -> int:
    """Show the calls that wait for approval."""
    if watch:
        if all or json:
            raise ConfigError("--watch cannot be combined with --all or --json")

        return watch_pending(_store(config))
    rows = _read(config, lambda store: store.rows(status="" if all else "pending", limit=limit))
    if json:
        write_json(rows)
    else:
        show_rows(rows, all=all, file=_store(config).path)
    return 0


def show_call(config: Configuration, id: Id, json: AsJson = False) -> int:
    """Show a call with its exact arguments, and the decision."""
    row = _store(config).find(id, short=True)
    if json:
        write_json(row)
    else:
        show_row(row)
    return 0


def approve(
    config: Configuration,
    id: Id,
    session: Annotated[
        bool, typer.Option("--session", help="Also approve later calls like this in the same session.")
    ] = False,
    always: Annotated[
        bool, typer.Option("--always", help="Also approve all later calls like this of the same agent.")
    ] = False,
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            "--pattern",
            metavar="NAME=GLOB",
            help="Approve later calls whose arguments match, not only equal ones. '*=*' matches any. Repeatable.",
        ),
    ] = None,
) -> int:
    """Approve a call."""
    from .approval_prompt import parse_pattern

    if session and always:
        raise ConfigError("use only one of --session and --always")
    if pattern and not (session or always):
        raise ConfigError("--pattern applies to later calls: add --session or --always")
    remember = "session" if session else "always" if always else "once"
    return _decide_and_print(config, id, decision="approve", remember=remember, pattern=parse_pattern(pattern or ()))


def deny(
    config: Configuration,
    id: Id,
    message: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MESSAGE]", help="The reason, which the model reads.", show_default=False),
    ] = None,
) -> int:
    """Deny a call."""
    return _decide_and_print(config, id, decision="deny", message=" ".join(message or ()))


def edit(
    config: Configuration,
    id: Id,
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="All arguments to run the call with.")],
) -> int:
    """Approve a call with other arguments, which the guards check again."""
    from .approval_prompt import UnclearAnswerError, parse_arguments

    try:
        return _decide_and_print(config, id, decision="edit", arguments=parse_arguments(arguments))
    except UnclearAnswerError as error:
        raise ConfigError(str(error)) from error


def list_grants(config: Configuration, json: AsJson = False) -> int:
    """Show the permissions that were granted for a session or permanently."""
    rows = _read(config, lambda store: store.grants())
    if json:
        write_json(rows)
    else:
        show_grants(rows, file=_store(config).path)
    return 0


def revoke(
    config: Configuration,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the permission, or its beginning.")],
) -> int:
    """Revoke a permission."""
    _store(config).revoke(id, short=True)
    typer.echo("revoked")
    return 0


def _decide_and_print(config: Configuration, id: str, **decision: Any) -> int:
    """Print a pending call and decide it. The digest ensures that its arguments are those printed."""
    from .approval_prompt import current_user, decision_text, describe_row

    store = _store(config)
    row = store.find(id, short=True)
    if row.status == "pending":
        typer.echo(indent_overflow(describe_row(row).strip("\n"), sys.stdout))
    done = store.decide(row.id, digest=row.digest, by=current_user(), **decision)
    typer.echo(decision_text(done, decision.get("pattern")))
    return 0


def _store(config: Configuration) -> ApprovalStore:
    from ..stores.approvals import ApprovalStore

    return ApprovalStore(config.settings.approval_file)


def _read(config: Configuration, look: Callable[[ApprovalStore], list[Any]]) -> list[Any]:
    """Read rows from the approval store; none if it has not been used yet."""
    store = _store(config)
    return look(store) if store.db.exists() else []


_GRANT = re.compile(rf"\bgrant_([0-9a-f]{{{ID_LENGTH}}})[0-9a-f]*")

NARROW = 100
"""Terminal width in columns below which the lists show fewer columns."""


def questions_text(row: ApprovalRow, width: int = 60) -> str:
    """Return the questions of a call, each with the hook that asks it."""
    return short(
        "; ".join(f"{q.hook}: {q.text}" + (f" ({q.reason})" if q.reason else "") for q in row.questions), width
    )


def show_rows(rows: Sequence[ApprovalRow], *, all: bool, file: str) -> None:
    """Print a line for each call, newest last."""
    if not rows:
        none = "No calls" if all else "No calls waiting for approval"
        print_parts(Text(f"{none} in {one_line(short_path(file))}."), soft_wrap=True)
        return
    now = time.time()
    narrow = console().width < NARROW
    left_out = ({"agent", "asked by"} if narrow else set()) if all else {"state", *(["agent"] if narrow else [])}
    last = "by" if all else "expires in"
    heads = ("id", "state", "tool", "arguments", "asked by", "agent", "age", last)
    lines = [
        (
            short_id(row.id),
            state_text(row.status),
            short(row.tool, 30),
            arguments_text(row.arguments, 60),
            short("; ".join(q.text for q in row.questions), 60) if narrow else questions_text(row),
            short(row.agent, 20),
            rough_duration(now - row.asked),
            _outcome(row) if all else rough_duration(row.expires - now),
        )
        for row in reversed(rows)
    ]
    _table(heads, lines, left_out, keep=("id", "state", "tool", "agent", "age", "expires in"))


def _table(heads: Sequence[str], lines: Sequence[Sequence[Any]], left_out: set[str], keep: Sequence[str]) -> None:
    """Print a table without some of its columns."""
    shown = [number for number, head in enumerate(heads) if head not in left_out]
    print_table([heads[number] for number in shown], [[line[number] for number in shown] for line in lines], keep=keep)


def _outcome(row: ApprovalRow) -> str:
    if row.status == "pending":
        return f"expires in {rough_duration(row.expires - time.time())}"
    later = {"session": " (session)", "always": " (always)"}.get(row.remember, "")
    return short(_GRANT.sub(r"\1", row.by), 40) + later


def show_row(row: ApprovalRow) -> None:
    """Print all details of a call."""
    asked = [(f"{q.hook} asks", q.text + (f" ({q.reason})" if q.reason else "")) for q in row.questions]
    items: list[tuple[str, ...]] = [
        ("state", row.status + (f" by {row.by}" if row.by else "")),
        *([("message", row.message)] if row.message else []),
        *([("remembered", row.remember)] if row.remember != "once" else []),
        ("asked", _date(row.asked)),
        *([("decided", _date(row.decided))] if row.decided is not None else [("expires", _date(row.expires))]),
        *asked,
        *([("approval", row.who_is_needed)] if row.who_is_needed else []),
        ("agent", row.agent),
        ("session", row.session_id),
        ("run", row.run_id + (f" in {row.root_id}" if row.root_id != row.run_id else "")),
        ("call", row.call_id + (f", attempt {row.attempt}" if row.attempt > 1 else "")),
        *([("owner", row.owner)] if row.owner else []),
        ("digest", row.digest),
    ]
    print_facts(f"{one_line(row.tool)}  {row.id}", [(one_line(label), one_line(text)) for label, text, *_ in items])
    print_parts(Text("\n  arguments", style="dim"), Text(pretty(row.arguments)))
    if row.edit is not None:
        print_parts(Text("\n  edited to", style="dim"), Text(pretty(row.edit)))


def pretty(arguments: dict[str, Any]) -> str:
    """Return arguments as indented JSON. Line breaks inside values are escaped."""
    text = msgspec.json.format(msgspec.json.encode(arguments), indent=2).decode()
    return "\n".join(f"  {printable(line, keep='')}" for line in text.split("\n"))


def show_grants(rows: Sequence[GrantRow], *, file: str) -> None:
    """Print a line for each permission, newest last."""
    if not rows:
        print_parts(Text(f"No permissions in {one_line(short_path(file))}."), soft_wrap=True)
        return
    lines = [
        (
            short_id(row.id),
            short(row.tool, 30),
            _grant_arguments(row),
            _grant_scope(row),
            short(", ".join(row.hooks), 40),
            short(row.by, 30),
            rough_duration(time.time() - row.at),
        )
        for row in reversed(rows)
    ]
    left_out = {"answers"} if console().width < NARROW else set()
    _table(
        ("id", "tool", "arguments", "where", "answers", "by", "age"), lines, left_out, keep=("id", "tool", "by", "age")
    )


def _grant_arguments(row: GrantRow) -> str:
    if not row.pattern:
        return f"exactly {arguments_text(row.arguments, 60)}"
    if row.pattern == {"*": "*"}:
        return "any"
    return short(", ".join(f"{name}={glob}" for name, glob in row.pattern.items()), 60)


def _grant_scope(row: GrantRow) -> str:
    owner = f" of {row.owner}" if row.owner else ""
    of = f"session {short(row.session_id, 16)}" if row.scope == "session" else f"agent {row.agent}"
    return short(f"{of}{owner}", 50)


def waiting_table(rows: Sequence[ApprovalRow], skipped: int, file: str) -> Any:
    """Return the table of waiting calls for the live view."""
    now = time.time()
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in ("id", "tool", "arguments", "agent", "age", "expires in"):
        made.add_column(head, no_wrap=True, overflow="ellipsis")
    for row in reversed(rows):
        cells = (
            short_id(row.id),
            short(row.tool, 30),
            arguments_text(row.arguments, 60),
            short(row.agent, 20),
            rough_duration(now - row.asked),
            rough_duration(row.expires - now),
        )
        made.add_row(*map(Text, cells))
    note = f"{counted(skipped, 'call')} skipped: hookline approvals approve ID" if skipped else ""
    where = one_line(short_path(file))
    title = Text(f"{counted(len(rows), 'call')} waiting" if rows else f"No calls waiting for approval in {where}.")
    return RichGroup(
        title, *([made] if rows else []), Text(" · ".join(filter(None, (note, "Ctrl-C quits"))), style="dim")
    )


def one_line(text: str) -> str:
    """Return the text without line breaks."""
    return printable(text, keep="")


def _date(at: float) -> str:
    ago = time.time() - at
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"{when} ({rough_duration(ago)} ago)" if ago >= 0 else f"{when} (in {rough_duration(-ago)})"


POLL_SECONDS = 0.5
"""Polling interval in seconds."""


def watch_pending(store: ApprovalStore) -> int:
    """Show waiting calls and ask about each one, until Ctrl-C. Without a terminal, print a line for each call."""
    store.open()
    terminal = Terminal.find() if sys.stdout.isatty() else None
    try:
        asyncio.run(_print_new_calls(store) if terminal is None else _prompt_each(store, terminal))
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    return COMPLETED


async def _print_new_calls(store: ApprovalStore) -> None:
    known: set[str] = set()
    while True:
        rows = await _pending(store)
        for row in rows:
            if row.id not in known:
                call = f"{short_id(row.id)}  {row.tool} {arguments_text(row.arguments)}  {questions_text(row)}"
                sys.stdout.write(f"{printable(call, keep='')}\n")
                sys.stdout.flush()
        known = {row.id for row in rows}
        await asyncio.sleep(POLL_SECONDS)


async def _prompt_each(store: ApprovalStore, terminal: Terminal) -> None:
    skipped: set[str] = set()
    while True:
        row = await _next_call(store, skipped)
        if await _prompt(store, terminal, row):
            continue
        skipped.add(row.id)


async def _next_call(store: ApprovalStore, skipped: set[str]) -> ApprovalRow:
    """Wait for the oldest pending call that was not skipped, and show the pending calls meanwhile."""
    live = Live(console=Console(highlight=False), auto_refresh=False, transient=True)
    moving = can_move_cursor(sys.stdout.isatty())
    shown = False
    try:
        while True:
            rows = await _pending(store)
            skipped.intersection_update(row.id for row in rows)
            for row in rows:
                if row.id not in skipped:
                    return row
            if moving:
                live.start()
                live.update(waiting_table(rows[::-1], len(skipped), store.path), refresh=True)
            elif not shown:
                sys.stdout.write("waiting for calls; Ctrl-C quits\n")
                sys.stdout.flush()
            shown = True
            await asyncio.sleep(POLL_SECONDS)
    finally:
        live.stop()


async def _prompt(store: ApprovalStore, terminal: Terminal, row: ApprovalRow) -> bool:
    """Ask about one call, unless it is decided elsewhere first. Return false if the user skipped it."""
    terminal.show(describe_row(row))
    asking, elsewhere = (
        asyncio.ensure_future(_decide(store, terminal, row)),
        asyncio.ensure_future(_wait_until_decided(store, row)),
    )
    try:
        await asyncio.wait([asking, elsewhere], return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        asking.cancel()
        await asyncio.wait([asking])
        now = elsewhere.result()
        by = f" by {now.by}" if now.by else ""
        terminal.show(printable(f"{row.tool} was {now.status}{by}", keep="") + "\n")
        return True
    finally:
        for task in (asking, elsewhere):
            task.cancel()
        await asyncio.wait([asking, elsewhere])


async def _decide(store: ApprovalStore, terminal: Terminal, row: ApprovalRow) -> bool:
    while True:
        decision = await ask_decision(terminal, skips=True)
        if decision.decision == "skip":
            return False
        try:
            done = store.decide(
                row.id,
                decision=decision.decision,
                digest=row.digest,
                by=current_user(),
                message=decision.message,
                arguments=decision.arguments,
                remember=decision.remember,
                pattern=decision.pattern,
            )
        except DecisionRefusedError as refused:
            terminal.show(f"Not accepted: {printable(str(refused), keep='')}\n")
            if refused.code not in ("bad", "rights"):
                return True
        except StoreError as error:
            terminal.show(f"The decision could not be stored: {printable(str(error), keep='')}\n")
        else:
            terminal.show(f"{decision_text(done, decision.pattern)}\n")
            return True


async def _wait_until_decided(store: ApprovalStore, row: ApprovalRow) -> ApprovalRow:
    """Return the call once it is no longer pending."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        now: ApprovalRow = await in_thread(store.find, row.id)
        if now.status != "pending":
            return now


async def _pending(store: ApprovalStore) -> list[ApprovalRow]:
    """Return the pending calls, oldest first."""
    rows: list[ApprovalRow] = await in_thread(store.rows, status="pending")
    return rows[::-1]
