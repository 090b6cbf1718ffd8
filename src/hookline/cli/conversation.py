"""A conversation at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..base.names import nearest
from ..config.settings import Settings
from ..kernel.errors import HooklineError
from ..kernel.values import Usage
from ..plugins.manager import PluginManager
from ..run.agent import Agent
from ..run.session import Session
from .failures import say_failure
from .stream import StreamView
from .text import cost_text, counted, printable, short, summary

PROMPT = "> "


class Chat:
    """A conversation at the terminal."""

    def __init__(
        self, agent: Agent, settings: Settings, view: StreamView, name: str | None, plugins: PluginManager,
        *, reload: bool = False,
    ) -> None:  # fmt: skip
        from .sessions import opened

        self.plugins, self.reloads = plugins, reload
        self.agent, self.settings, self.view, self.name = agent, settings, view, name
        self.session = opened(settings, name) or Session()
        self.usage, self.turns = Usage(), 0
        self.cost: float | None = 0.0
        self.over = False
        self.commands: dict[str, tuple[str, Callable[[], None]]] = {
            "/help": ("these commands", self.help),
            "/hooks": ("what fires where", self.hooks),
            "/tools": ("what the model may call", self.tools),
            "/plugins": ("what is switched on", self.show_plugins),
            "/reload": ("load plugins anew whose files have changed", self.reload),
            "/tokens": ("what the conversation used", self.tokens),
            "/session": ("where the conversation is kept", self.where),
            "/clear": ("forget what was said", self.clear),
            "/quit": ("leave; Ctrl-D does too", self.quit),
        }

    def talk(self) -> None:
        """Take turns until the user leaves."""
        model = f"{self.agent.model.name} ({self.agent.model.provider})"
        there = (model, counted(len(self.agent.tools), "tool"), counted(len(self.agent.hooks), "hook"), "/help")
        print_line(" · ".join(there))
        if self.name is not None:
            self.where()
        while not self.over:
            try:
                said = input(PROMPT).strip()
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

    def command(self, said: str) -> None:
        """Do what a slash command says."""
        name = said.split(maxsplit=1)[0]
        if name in self.commands:
            self.commands[name][1]()
        else:
            print_line(f"There is no command {name}.{nearest(name, self.commands)} /help shows all.")

    def turn(self, said: str) -> None:
        """One run with what the user said."""
        from ..config.build import context
        from .sessions import saved
        from .turn import perform

        if self.reloads:
            self.refresh()
        with self.view:
            ctx = context(self.settings, self.session)
            outcome = perform(self.agent, said, ctx, [self.view], self.settings.metadata)
        result = outcome.result
        self.turns, self.usage = self.turns + 1, self.usage + result.usage
        self.cost = None if self.cost is None or result.cost is None else self.cost + result.cost
        self.view.finish(result.reply)
        if outcome.failure is not None:
            say_failure(outcome.failure, debug=self.settings.debug)
        if result.status != "completed":
            print_line(f"({summary(result, outcome.broken)})")
        saved(self.settings, self.name, self.session)

    def help(self) -> None:
        """Show the commands."""
        for name, (text, _) in self.commands.items():
            print_line(f"  {name:<10}{text}")

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
        from .screen import nearby

        messages = counted(len(self.session.messages), "message")
        kept = f"kept in {nearby(self.settings.sessions)}" if self.name is not None else "not kept; see --session"
        print_line(f"session {self.name or 'without a name'}: {messages}, {kept}")

    def clear(self) -> None:
        """Begin anew."""
        from .sessions import saved

        self.session = Session(self.name or "")
        saved(self.settings, self.name, self.session)
        print_line("Forgotten.")

    def quit(self) -> None:
        """Leave."""
        self.over = True


def print_line(text: str) -> None:
    """A line on stdout, free of control characters."""
    sys.stdout.write(f"{printable(text, keep='')}\n")
    sys.stdout.flush()
