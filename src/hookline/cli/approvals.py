"""``hookline approvals``: list and decide tool calls that wait for approval."""

from __future__ import annotations

import asyncio
import os
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
from .approval_prompt import asked, called, decided_text, person
from .errors import COMPLETED
from .help import Command, ListingGroup
from .options import takes_settings
from .output import console, facts, nearby, show, state, table, write_json
from .terminal import Terminal, is_capable
from .text import ID_LENGTH, arguments_text, counted, printable, roughly, short, short_id

if TYPE_CHECKING:
    from ..stores.approvals import ApprovalStore


EPILOG = """
Calls of tools that a hook asks about wait here until somebody decides, at the terminal of their run or here; nobody
means no. An id may be shortened.

Examples:
  hookline approvals
  hookline approvals --all
  hookline approvals --watch
  hookline approvals approve 3f2a
  hookline approvals approve 3f2a --session --pattern path='notes/*'
  hookline approvals deny 3f2a "Use the other file."
  hookline approvals edit 3f2a '{"path": "notes/today.md"}'
"""

Id = Annotated[str, typer.Argument(metavar="ID", help="The call, or the beginning of its id.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=ListingGroup,
        rich_markup_mode=None,
        help="Approve or deny tool calls that wait for approval.",
        epilog=EPILOG,
    )
    commands: dict[str, Callable[..., int]] = {
        "list": list_calls, "show": show_call, "approve": approve, "deny": deny, "edit": edit, "grants": list_grants,
        "revoke": revoke,
    }  # fmt: skip
    for name, function in commands.items():
        group.command(name, cls=Command)(takes_settings("approval_file", "debug")(function))
    app.add_typer(group, name="approvals")


def list_calls(
    config: Configuration,
    all: Annotated[bool, typer.Option("--all", help="Also those that were decided.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and ask about each call as it comes.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most N.")] = 100,
    json: AsJson = False,
) -> int:
    """Show the calls that wait for approval."""
    if watch:
        if all or json:
            raise ConfigError("--watch shows what waits: leave out --all and --json")

        return watch_pending(_store(config))
    rows = _known(config, lambda store: store.rows(status="" if all else "pending", limit=limit))
    if json:
        write_json(rows)
    else:
        show_rows(rows, all=all, file=_store(config).path)
    return 0


def show_call(config: Configuration, id: Id, json: AsJson = False) -> int:
    """Show a call with its exact arguments, and what became of it."""
    row = _store(config).find(id, short=True)
    if json:
        write_json(row)
    else:
        show_row(row)
    return 0


def approve(
    config: Configuration,
    id: Id,
    session: Annotated[bool, typer.Option("--session", help="And later such calls in its session.")] = False,
    always: Annotated[bool, typer.Option("--always", help="And later such calls of its agent, everywhere.")] = False,
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            "--pattern", metavar="NAME=GLOB",
            help="Such calls are those whose arguments match; without it, exactly these. '*=*': any. Repeatable.",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Let a call run."""
    from .approval_prompt import pattern_of

    if session and always:
        raise ConfigError("choose one of --session and --always")
    if pattern and not (session or always):
        raise ConfigError("--pattern says what is allowed later: give --session or --always with it")
    remember = "session" if session else "always" if always else "once"
    return _decide_and_print(config, id, decision="approve", remember=remember, pattern=pattern_of(pattern or ()))


def deny(
    config: Configuration,
    id: Id,
    message: Annotated[
        list[str] | None, typer.Argument(metavar="[MESSAGE]", help="Why; the model is told.", show_default=False)
    ] = None,
) -> int:
    """Do not let a call run."""
    return _decide_and_print(config, id, decision="deny", message=" ".join(message or ()))


def edit(
    config: Configuration,
    id: Id,
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="The arguments to run it with, all of them.")],
) -> int:
    """Let a call run with other arguments, if the guards let them pass."""
    from .approval_prompt import Unclear, new_arguments

    try:
        return _decide_and_print(config, id, decision="edit", arguments=new_arguments(arguments))
    except Unclear as unclear:
        raise ConfigError(str(unclear)) from unclear


def list_grants(config: Configuration, json: AsJson = False) -> int:
    """Show what was allowed for a session, or for good."""
    rows = _known(config, lambda store: store.grants())
    if json:
        write_json(rows)
    else:
        show_grants(rows, file=_store(config).path)
    return 0


def revoke(
    config: Configuration,
    id: Annotated[str, typer.Argument(metavar="ID", help="The permission, or the beginning of its id.")],
) -> int:
    """Take a permission back."""
    _store(config).revoke(id, short=True)
    typer.echo("revoked")
    return 0


def _decide_and_print(config: Configuration, id: str, **said: Any) -> int:
    """Decide about what is shown here, and nothing else."""
    from .approval_prompt import called, decided_text, person

    store = _store(config)
    row = store.find(id, short=True)
    if row.status == "pending":
        typer.echo(called(row).strip("\n"))
    done = store.decide(row.id, digest=row.digest, by=person(), **said)
    typer.echo(decided_text(done, said.get("pattern")))
    return 0


def _store(config: Configuration) -> ApprovalStore:
    from ..stores.approvals import ApprovalStore

    return ApprovalStore(config.settings.approval_file)


def _known(config: Configuration, look: Callable[[ApprovalStore], list[Any]]) -> list[Any]:
    """What is in the file; nothing, if nobody has made it."""
    store = _store(config)
    return look(store) if os.path.exists(store.path) else []


_GRANT = re.compile(rf"\bgrant_([0-9a-f]{{{ID_LENGTH}}})[0-9a-f]*")

NARROW = 100
"""Columns below which less of a call is listed: show tells the rest."""


def questions_of(row: ApprovalRow, width: int = 60) -> str:
    """Who asks what."""
    return short(
        "; ".join(f"{q.hook}: {q.text}" + (f" ({q.reason})" if q.reason else "") for q in row.questions), width
    )


def show_rows(rows: Sequence[ApprovalRow], *, all: bool, file: str) -> None:
    """A line for each call, the newest last; where there is none, in which file."""
    if not rows:
        none = "No call was ever put to anybody" if all else "Nothing waits for approval"
        show(Text(f"{none} in {one_line(nearby(file))}."), soft_wrap=True)
        return
    now = time.time()
    narrow = console().width < NARROW
    left_out = ({"agent", "asked by"} if narrow else set()) if all else {"state", *(["agent"] if narrow else [])}
    last = "by" if all else "expires in"
    heads = ("id", "state", "tool", "arguments", "asked by", "agent", "age", last)
    lines = [
        (
            short_id(row.id), state(row.status), short(row.tool, 30), arguments_text(row.arguments, 60),
            short("; ".join(q.text for q in row.questions), 60) if narrow else questions_of(row), short(row.agent, 20),
            roughly(now - row.asked), _became(row) if all else roughly(row.expires - now),
        )
        for row in reversed(rows)
    ]  # fmt: skip
    _table(heads, lines, left_out, keep=("id", "state", "tool", "agent", "age", "expires in"))


def _table(heads: Sequence[str], lines: Sequence[Sequence[Any]], left_out: set[str], keep: Sequence[str]) -> None:
    """A table without some of its columns."""
    shown = [number for number, head in enumerate(heads) if head not in left_out]
    table([heads[number] for number in shown], [[line[number] for number in shown] for line in lines], keep=keep)


def _became(row: ApprovalRow) -> str:
    if row.status == "pending":
        return f"expires in {roughly(row.expires - time.time())}"
    later = {"session": " (session)", "always": " (always)"}.get(row.remember, "")
    return short(_GRANT.sub(r"\1", row.by), 40) + later


def show_row(row: ApprovalRow) -> None:
    """All there is to know about a call."""
    asked = [(f"{q.hook} asks", q.text + (f" ({q.reason})" if q.reason else "")) for q in row.questions]
    items: list[tuple[str, ...]] = [
        ("state", row.status + (f" by {row.by}" if row.by else "")),
        *([("message", row.message)] if row.message else []),
        *([("remembered", row.remember)] if row.remember != "once" else []),
        ("asked", _date(row.asked)),
        *([("decided", _date(row.decided))] if row.decided is not None else [("expires", _date(row.expires))]),
        *asked,
        ("agent", row.agent),
        ("session", row.session_id),
        ("run", row.run_id + (f" in {row.root_id}" if row.root_id != row.run_id else "")),
        ("call", row.call_id + (f", attempt {row.attempt}" if row.attempt > 1 else "")),
        *([("owner", row.owner)] if row.owner else []),
        ("digest", row.digest),
    ]
    facts(f"{one_line(row.tool)}  {row.id}", [(one_line(label), one_line(text)) for label, text, *_ in items])
    show(Text("\n  arguments", style="dim"), Text(pretty(row.arguments)))
    if row.edit is not None:
        show(Text("\n  edited to", style="dim"), Text(pretty(row.edit)))


def pretty(arguments: dict[str, Any]) -> str:
    """Exact arguments as indented JSON, which escapes all that would begin a line of its own."""
    text = msgspec.json.format(msgspec.json.encode(arguments), indent=2).decode()
    return "\n".join(f"  {printable(line, keep='')}" for line in text.split("\n"))


def show_grants(rows: Sequence[GrantRow], *, file: str) -> None:
    """A line for each permission, the newest last; where there is none, in which file."""
    if not rows:
        show(Text(f"Nothing is allowed for a session or for good in {one_line(nearby(file))}."), soft_wrap=True)
        return
    lines = [
        (
            short_id(row.id), short(row.tool, 30), _covered(row), _where(row), short(", ".join(row.hooks), 40),
            short(row.by, 30), roughly(time.time() - row.at),
        )
        for row in reversed(rows)
    ]  # fmt: skip
    left_out = {"answers"} if console().width < NARROW else set()
    _table(
        ("id", "tool", "arguments", "where", "answers", "by", "age"), lines, left_out, keep=("id", "tool", "by", "age")
    )


def _covered(row: GrantRow) -> str:
    if not row.pattern:
        return f"exactly {arguments_text(row.arguments, 60)}"
    if row.pattern == {"*": "*"}:
        return "any"
    return short(", ".join(f"{name}={glob}" for name, glob in row.pattern.items()), 60)


def _where(row: GrantRow) -> str:
    owner = f" of {row.owner}" if row.owner else ""
    of = f"session {short(row.session_id, 16)}" if row.scope == "session" else f"agent {row.agent}"
    return short(f"{of}{owner}", 50)


def waiting_table(rows: Sequence[ApprovalRow], skipped: int, file: str) -> Any:
    """What waits, for the live view."""
    now = time.time()
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in ("id", "tool", "arguments", "agent", "age", "expires in"):
        made.add_column(head, no_wrap=True, overflow="ellipsis")
    for row in reversed(rows):
        cells = (
            short_id(row.id), short(row.tool, 30), arguments_text(row.arguments, 60), short(row.agent, 20),
            roughly(now - row.asked), roughly(row.expires - now),
        )  # fmt: skip
        made.add_row(*map(Text, cells))
    note = f"{counted(skipped, 'call')} skipped: hookline approvals approve ID" if skipped else ""
    title = Text(f"{counted(len(rows), 'call')} waiting" if rows else f"Nothing waits in {one_line(nearby(file))}.")
    return RichGroup(
        title, *([made] if rows else []), Text(" · ".join(filter(None, (note, "Ctrl-C leaves"))), style="dim")
    )


def one_line(text: str) -> str:
    """A text that cannot begin a line of its own."""
    return printable(text, keep="")


def _date(at: float) -> str:
    ago = time.time() - at
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"{when} ({roughly(ago)} ago)" if ago >= 0 else f"{when} (in {roughly(-ago)})"


EVERY = 0.5
"""Seconds between two looks."""


def watch_pending(store: ApprovalStore) -> int:
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
                live.update(waiting_table(rows[::-1], len(skipped), store.path), refresh=True)
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
