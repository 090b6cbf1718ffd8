"""``hookline chat``: a conversation with an agent at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._base.text import did_you_mean
from .._kernel.errors import HooklineError
from .._kernel.values import Usage
from .._run.agent import Agent
from .._run.session import Session
from ..config.settings import Settings
from ..config.sources import Configuration
from ..plugins.manager import PluginManager
from .errors import quiet_logs, say_failure, say_note
from .help import Command
from .options import takes_settings
from .output import nearby
from .runner import Outcome, agent_of, awaited, perform_all, saved
from .text import cost_text, counted, printable, short, summary
from .views import StreamView

if TYPE_CHECKING:
    from ..teams.roster import Roster


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
    """Chat with an agent."""
    from .._run.session import Session
    from ..config.build import build_plugins
    from .approval_prompt import Approver
    from .plugins import close_plugins
    from .runner import answering, opened, recorded, recorder
    from .terminal import is_capable
    from .views import StreamView
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


PROMPT = "> "


class Chat:
    """A conversation at the terminal."""

    def __init__(
        self, answerer: Agent[Any, Any] | Roster, settings: Settings, view: StreamView, name: str | None,
        session: Session, plugins: PluginManager, *, reload: bool = False,
    ) -> None:  # fmt: skip
        self.answerer, self.settings, self.view, self.name, self.session = answerer, settings, view, name, session
        self.plugins, self.reloads = plugins, reload
        self.usage, self.turns = Usage(), 0
        self.cost: float | None = 0.0
        self.over = False
        self._told = [] if isinstance(answerer, Agent) else list(answerer.problems.values())
        self.commands: dict[str, tuple[str, Callable[[], None]]] = {
            "/help": ("these commands", self.help),
            **{f"/{word}": (command.help, lambda: None) for word, command in self._shared.items()},
            "/hooks": ("what fires where", self.hooks),
            "/tools": ("what the model may call", self.tools),
            "/plugins": ("what is switched on", self.show_plugins),
            "/reload": ("load plugins anew whose files have changed", self.reload),
            "/tokens": ("what the conversation used", self.tokens),
            "/session": ("where the conversation is kept", self.where),
            "/clear": ("forget what was said", self.clear),
            "/quit": ("leave; Ctrl-D does too", self.quit),
        }

    @property
    def _shared(self) -> Mapping[str, Any]:
        """The commands that this conversation has everywhere, not only at a terminal."""
        return getattr(self.answerer, "commands", {})

    @property
    def agent(self) -> Agent[Any, Any]:
        """The agent that speaks."""
        return agent_of(self.answerer, self.session)

    @property
    def speaker(self) -> str:
        """Who speaks, if there are several."""
        return "" if isinstance(self.answerer, Agent) else self.answerer.active(self.session).shown

    def talk(self) -> None:
        """Take turns until the user leaves."""
        model = f"{self.agent.model.name} ({self.agent.model.provider})"
        there = (model, counted(len(self.agent.tools), "tool"), counted(len(self.agent.hooks), "hook"), "/help")
        print_line(" · ".join(filter(None, (self.speaker, *there))))
        if self.name is not None:
            self.where()
        while not self.over:
            self._tell_problems()
            try:
                said = input(f"{self.speaker}{PROMPT}").strip()
                if said.startswith("/"):
                    self.command(said)
                elif said:
                    self.turn(said)
            except EOFError:
                print_line("")
                return
            except HooklineError as error:
                say_failure(error, debug=self.settings.debug)
            except KeyboardInterrupt:
                print_line("")
                print_line("(Ctrl-D leaves)")

    def _tell_problems(self) -> None:
        """Say what is wrong with personalities, if it was not said before."""
        problems = [] if isinstance(self.answerer, Agent) else list(self.answerer.problems.values())
        for problem in problems:
            if problem not in self._told:
                say_note(problem)
        self._told = problems

    def command(self, said: str) -> None:
        """Do what a slash command says."""
        name, _, argument = said.partition(" ")
        if (shared := self._shared.get(name[1:])) is not None:
            for line in awaited(shared.call(self.session, argument.strip())).splitlines():
                print_line(line)
            saved(self.settings, self.name, self.session)
        elif name in self.commands:
            self.commands[name][1]()
        else:
            print_line(f"There is no command {name}.{did_you_mean(name, self.commands)} /help shows all.")

    def turn(self, said: str) -> None:
        """One run with what the user said, and those that follow it."""
        from ..config.build import context

        if self.reloads:
            self.refresh()
        ctx, speaker = context(self.settings, self.session), self.speaker
        with self.view:
            for outcome in perform_all(self.answerer, said, ctx, [self.view], self.settings.metadata):
                self._finished(outcome)
                if self.speaker != speaker:
                    speaker = self.speaker
                    print_line(f"({speaker} speaks now)")
        saved(self.settings, self.name, self.session)

    def _finished(self, outcome: Outcome) -> None:
        result = outcome.result
        self.turns, self.usage = self.turns + 1, self.usage + result.usage
        self.cost = None if self.cost is None or result.cost is None else self.cost + result.cost
        self.view.finish(result.output_text)
        if outcome.failure is not None:
            say_failure(outcome.failure, debug=self.settings.debug)
        if result.status != "completed":
            print_line(f"({summary(result, outcome.broken, outcome.within)})")

    def help(self) -> None:
        """Show the commands."""
        width = max(map(len, self.commands)) + 2
        for name, (text, _) in self.commands.items():
            print_line(f"  {name:<{width}}{text}")

    def hooks(self) -> None:
        """Show the hooks."""
        from .hooks import show_hooks

        show_hooks(self.agent.hooks)

    def tools(self) -> None:
        """Show the tools."""
        for tool in self.agent.tools:
            print_line(f"  {tool.name:<16}{short(tool.spec.description, 80)}")

    def show_plugins(self) -> None:
        """Show the plugins that are on."""
        for plugin in self.plugins.active:
            text = f"{plugin.version}  {short(plugin.description, 60)}".strip()
            print_line(f"  {plugin.name:<16}{text}")
        if not self.plugins.active:
            print_line("  none; 'hookline plugins list' shows what there is")

    def reload(self) -> None:
        """Load changed plugins anew."""
        if not self.refresh():
            print_line("Nothing has changed.")

    def refresh(self) -> bool:
        """Load changed plugins anew, and tell; whether there were any."""
        notes = self.plugins.refresh()
        for note in notes:
            print_line(f"({note})")
        return bool(notes)

    def tokens(self) -> None:
        """Show what was used."""
        now = self.agent.model.count_tokens(self.session.messages)
        used = f"{self.usage.input_tokens:,} in, {self.usage.output_tokens:,} out"
        print_line(f"  {counted(self.turns, 'turn')}: {used}, {cost_text(self.cost)}")
        print_line(f"  the conversation now: about {counted(now, 'token')}")

    def where(self) -> None:
        """Show the session."""
        messages = counted(len(self.session.messages), "message")
        kept = f"kept in {nearby(self.settings.sessions)}" if self.name is not None else "not kept; see --session"
        print_line(f"session {self.name or 'without a name'}: {messages}, {kept}")

    def clear(self) -> None:
        """Begin anew; who speaks stays."""
        now = self.session
        self.session = Session(
            self.name or "", personality_id=now.personality_id, personality_changes=now.personality_changes
        )
        saved(self.settings, self.name, self.session)
        print_line("Forgotten.")

    def quit(self) -> None:
        """Leave."""
        self.over = True


def print_line(text: str) -> None:
    """A line on stdout, free of control characters."""
    sys.stdout.write(f"{printable(text, keep='')}\n")
    sys.stdout.flush()
