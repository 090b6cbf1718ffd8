"""``hookline chat``: a conversation."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from .._kernel.errors import HooklineError
from ..config.sources import Configuration
from .help import Command
from .options import takes_settings

EPILOG = """
Examples:
  hookline chat
  hookline chat --session notes --hooks rules.py

Ctrl-C cancels the reply, Ctrl-D leaves, /help shows what else there is.
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("chat", cls=Command, epilog=EPILOG)(takes_settings()(chat))


def chat(
    config: Configuration,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go on with this session, and save it.", show_default=False)
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Before each turn, load plugins anew whose files have changed.")
    ] = False,
) -> int:
    """Talk to an agent."""
    from .._run.session import Session
    from ..config.plugins import build_plugins
    from .approver import Approver
    from .conversation import Chat
    from .logs import quiet_logs
    from .plugins import close_plugins
    from .recording import recorded, recorder
    from .sessions import opened
    from .speaking import answering
    from .stream import StreamView
    from .view import is_capable
    from .weights import make_ready

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise HooklineError('chat needs a terminal; without one, use: hookline run "TASK" --session NAME')
    settings = config.settings
    quiet_logs(settings.debug)
    view = StreamView(sys.stdout, sys.stderr, patience=is_capable(sys.stdout.isatty()))
    recorders = recorder(settings)
    hooks = [Approver(settings.approvals, view.paused, settings.approval_file), *recorders]
    conversation = opened(settings, session) or Session()
    plugins = build_plugins(settings, config.home)
    with suppress(ImportError):
        import readline  # noqa: F401 - editing and history for input()
    try:
        answerer, agent = answering(config, hooks, conversation, plugins)
        make_ready(agent.model)
        Chat(answerer, settings, view, session, conversation, plugins, reload=reload).talk()
    finally:
        close_plugins(plugins)
        recorded(recorders)
    return 0
