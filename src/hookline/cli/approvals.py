"""``hookline approvals``: what waits for a person, and what was allowed for good."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config.errors import ConfigError
from ..config.sources import Configuration
from .help import Command, Group
from .options import takes_settings

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


class _Group(Group):
    """Alone, or with options only, it lists what waits."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the arguments."""
        if not args or (args[0].startswith("-") and not {"-h", "--help"} & set(args)):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=_Group, rich_markup_mode=None, help="Decide about calls that wait for approval.", epilog=EPILOG
    )
    commands: dict[str, Callable[..., int]] = {
        "list": list_calls, "show": show, "approve": approve, "deny": deny, "edit": edit, "grants": grants,
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
    from . import approval_views as views
    from .screen import write_json

    if watch:
        if all or json:
            raise ConfigError("--watch shows what waits: leave out --all and --json")
        from .approval_watch import watch as watch_calls

        return watch_calls(_store(config))
    rows = _known(config, lambda store: store.rows(status="" if all else "pending", limit=limit))
    if json:
        write_json(rows)
    else:
        views.show_rows(rows, all=all, file=_store(config).path)
    return 0


def show(config: Configuration, id: Id, json: AsJson = False) -> int:
    """Show a call with its exact arguments, and what became of it."""
    from . import approval_views as views
    from .screen import write_json

    row = _store(config).find(id, short=True)
    if json:
        write_json(row)
    else:
        views.show_row(row)
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
    from .approval_answers import pattern_of

    if session and always:
        raise ConfigError("choose one of --session and --always")
    if pattern and not (session or always):
        raise ConfigError("--pattern says what is allowed later: give --session or --always with it")
    remember = "session" if session else "always" if always else "once"
    return _decide(config, id, decision="approve", remember=remember, pattern=pattern_of(pattern or ()))


def deny(
    config: Configuration,
    id: Id,
    message: Annotated[
        list[str] | None, typer.Argument(metavar="[MESSAGE]", help="Why; the model is told.", show_default=False)
    ] = None,
) -> int:
    """Do not let a call run."""
    return _decide(config, id, decision="deny", message=" ".join(message or ()))


def edit(
    config: Configuration,
    id: Id,
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="The arguments to run it with, all of them.")],
) -> int:
    """Let a call run with other arguments, if the guards let them pass."""
    from .approval_answers import Unclear, new_arguments

    try:
        return _decide(config, id, decision="edit", arguments=new_arguments(arguments))
    except Unclear as unclear:
        raise ConfigError(str(unclear)) from unclear


def grants(config: Configuration, json: AsJson = False) -> int:
    """Show what was allowed for a session, or for good."""
    from . import approval_views as views
    from .screen import write_json

    rows = _known(config, lambda store: store.grants())
    if json:
        write_json(rows)
    else:
        views.show_grants(rows, file=_store(config).path)
    return 0


def revoke(
    config: Configuration,
    id: Annotated[str, typer.Argument(metavar="ID", help="The permission, or the beginning of its id.")],
) -> int:
    """Take a permission back."""
    _store(config).revoke(id, short=True)
    typer.echo("revoked")
    return 0


def _decide(config: Configuration, id: str, **said: Any) -> int:
    """Decide about what is shown here, and nothing else."""
    from .approval_answers import called, decided_text, person

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
