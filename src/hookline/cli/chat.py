"""``hookline chat``: a conversation with an agent at the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._base.attachment import Attachment
from .._base.files import user_folder
from .._base.text import did_you_mean
from .._kernel.errors import HooklineError
from .._kernel.values import Usage
from .._run.agent import Agent
from .._run.run_hooks import clean_for
from .._run.session import Session
from ..config.sources import Configuration
from ..plugins.manager import PluginManager
from .chat_input import ChatInput
from .errors import print_failure, print_note, set_up_logging
from .help import Command
from .keyboard import Keyboard
from .options import with_settings
from .output import short_path
from .runner import (
    RunOutcome,
    current_agent,
    make_terminal_context,
    run_coroutine,
    run_with_handovers,
    save_session,
)
from .text import cost_text, counted, printable, run_summary, short

if TYPE_CHECKING:
    from ..teams.roster import Roster


EPILOG = """
Examples:
  hookline chat
  hookline chat --session notes --hooks rules.py

Esc or Ctrl-C cancels the current reply, Ctrl-D or a second Ctrl-C quits, /help lists the commands of the chat.
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("chat", cls=Command, epilog=EPILOG)(with_settings()(chat))


def chat(
    config: Configuration,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Continue this session, and save it.", show_default=False)
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Before each message, reload plugins whose files have changed.")
    ] = False,
) -> int:
    """Chat with an agent."""
    from .._run.session import Session
    from ..config.factory import approval_policy, build_plugins
    from .approval_prompt import Approver
    from .plugins import close_plugins
    from .runner import finish_recording, load_session, prepare_agent, start_recording
    from .weights import prepare_model

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise HooklineError('chat needs a terminal; without one, use: hookline run "TASK" --session NAME')
    settings = config.settings
    set_up_logging(settings.debug)
    screen = Screen()
    recorders = start_recording(settings)
    approver = Approver(settings.approvals, screen.paused, settings.approval_file, approval_policy(settings))
    screen.view.prompts = approver.prompts
    hooks = [approver, *recorders]
    conversation = load_session(settings, session) or Session()
    plugins = build_plugins(settings, config.home)
    try:
        answerer, agent = prepare_agent(config, hooks, conversation, plugins)
        prepare_model(agent.model)
        with screen.keyboard:
            Chat(answerer, config, screen, session, conversation, plugins, reload=reload).loop()
    finally:
        close_plugins(plugins)
        finish_recording(recorders)
    return 0


class Screen:
    """The terminal of a conversation: what is shown of a run, and the keyboard meanwhile."""

    def __init__(self) -> None:
        from rich.console import Console

        from .live_view import LiveView
        from .terminal import can_move_cursor

        self.view = LiveView(
            Console(highlight=False), conversation=True, live=can_move_cursor(True), hint="Esc interrupts"
        )
        self.keyboard = Keyboard(sys.stdin.fileno())

    @contextmanager
    def showing(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Show a run. Esc calls ``interrupt``."""
        with self.view, self.keyboard.listening(interrupt):
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave screen and keyboard free for a question."""
        with self.view.paused(), self.keyboard.paused():
            yield


class Chat:
    """A conversation at the terminal."""

    def __init__(
        self,
        answerer: Agent[Any, Any] | Roster,
        config: Configuration,
        screen: Screen,
        name: str | None,
        session: Session,
        plugins: PluginManager,
        *,
        reload: bool = False,
    ) -> None:
        self.answerer, self.screen, self.name, self.session = answerer, screen, name, session
        self.settings, self.home = config.settings, config.home
        self.plugins, self.reload_first = plugins, reload
        self.usage, self.turns = Usage(), 0
        self.cost: float | None = 0.0
        self.elapsed = 0.0
        self.finished = False
        self._interrupted = False
        """Whether Ctrl-C was the last thing that was pressed."""
        self.attachments: list[Attachment] = []
        """Files for the next message."""
        self._known_problems = [] if isinstance(answerer, Agent) else list(answerer.problems.values())
        self.commands: dict[str, tuple[str, Callable[[], None]]] = {
            "/help": ("list these commands", self.help),
            **{f"/{word}": (command.help, lambda: None) for word, command in self._shared.items()},
            "/attach": ("attach a file or a URL to the next message: /attach photo.jpg", self.attach),
            "/hooks": ("show which hooks run where", self.hooks),
            "/tools": ("show the tools of the model", self.tools),
            "/plugins": ("show the enabled plugins", self.show_plugins),
            "/reload": ("reload plugins whose files have changed", self.reload),
            "/tokens": ("show tokens and cost of the conversation", self.tokens),
            "/session": ("show where the conversation is saved", self.show_session),
            "/clear": ("start a new conversation", self.clear),
            "/quit": ("quit (or Ctrl-D)", self.quit),
        }

    @property
    def _shared(self) -> Mapping[str, Any]:
        """The commands that exist in every channel, not only in this chat."""
        return getattr(self.answerer, "commands", {})

    @property
    def agent(self) -> Agent[Any, Any]:
        """The active agent."""
        return current_agent(self.answerer, self.session)

    @property
    def speaker(self) -> str:
        """The name of the active personality; empty without personalities."""
        return "" if isinstance(self.answerer, Agent) else self.answerer.active(self.session).display_name

    def loop(self) -> None:
        """Read messages and answer them until the user quits."""
        model = f"{self.agent.model.name} ({self.agent.model.provider})"
        there = (model, counted(len(self.agent.tools), "tool"), counted(len(self.agent.hooks), "hook"), "/help")
        print_line(" · ".join(filter(None, (self.speaker, *there))))
        if self.name is not None:
            self.show_session()
        try:
            self._loop()
        finally:
            self._end_session("prompt_input_exit")

    def _loop(self) -> None:
        words = {name: text for name, (text, _) in self.commands.items()}
        clean = partial(clean_for, self.answerer)
        asking = ChatInput(words, user_folder("data") / "chat-history", self.status, clean)
        while not self.finished:
            self._print_problems()
            try:
                typed, self.screen.keyboard.typed = self.screen.keyboard.typed, ""
                text = asking.read(self.speaker, typed).strip()
                self._interrupted = False
                if text.startswith("/"):
                    self.command(text)
                elif text:
                    self.send(text)
            except EOFError:
                return
            except HooklineError as error:
                print_failure(error, debug=self.settings.debug)
            except KeyboardInterrupt:
                if self._interrupted:
                    return
                self._interrupted = True
                print_line("(Ctrl-C again or Ctrl-D quits)")

    def status(self) -> str:
        """Return the status line: model, tokens and cost of the conversation, and the time of the last reply."""
        used = (counted(self.usage.total_tokens, "token"), cost_text(self.cost), f"{self.elapsed:.1f} s")
        saved = f"session {self.name}" if self.name is not None else ""
        return " · ".join(filter(None, (self.agent.model.name, *(used if self.turns else ()), saved, "/help")))

    def _print_problems(self) -> None:
        """Print new problems with personality files."""
        problems = [] if isinstance(self.answerer, Agent) else list(self.answerer.problems.values())
        for problem in problems:
            if problem not in self._known_problems:
                print_note(problem)
        self._known_problems = problems

    def command(self, text: str) -> None:
        """Run a slash command."""
        name, _, argument = text.partition(" ")
        if (shared := self._shared.get(name[1:])) is not None:
            for line in run_coroutine(shared.call(self.session, argument.strip())).splitlines():
                print_line(line)
            save_session(self.settings, self.name, self.session)
        elif name == "/attach":
            self.attach(argument.strip())
        elif name in self.commands:
            self.commands[name][1]()
        else:
            print_line(f"There is no command {name}.{did_you_mean(name, self.commands)} /help shows all.")

    def attach(self, file: str = "") -> None:
        """Attach a file to the next message."""
        if not file:
            raise HooklineError("give a file or a URL: /attach photo.jpg")
        found = Attachment.of(os.path.expanduser(file), max_size=self.settings.max_attachment)
        self.attachments.append(found)
        print_line(f"{found} is sent with your next message.")

    def send(self, text: str) -> None:
        """Run the agent on a message, and the agents it hands over to."""
        if self.reload_first:
            self.refresh()
        ctx, speaker = make_terminal_context(self.settings, self.home, self.session), self.speaker
        self.elapsed = 0.0
        files, self.attachments = self.attachments, []
        with self.screen.showing(lambda: ctx.interrupt.cancel("Esc")):
            runs = run_with_handovers(self.answerer, text, ctx, [self.screen.view], self.settings.metadata, files)
            for outcome in runs:
                self.screen.view.finish(outcome.result.output_text)
                with self.screen.view.paused():
                    self._show_outcome(outcome)
                    if self.speaker != speaker:
                        speaker = self.speaker
                        print_line(f"({speaker} takes over)")
        print_line("")
        save_session(self.settings, self.name, self.session)

    def _show_outcome(self, outcome: RunOutcome) -> None:
        result = outcome.result
        self.turns, self.usage = self.turns + 1, self.usage + result.usage
        self.cost = None if self.cost is None or result.cost is None else self.cost + result.cost
        self.elapsed += result.elapsed
        if outcome.failure is not None:
            print_failure(outcome.failure, debug=self.settings.debug)
        if result.status != "completed":
            stop = result.stop
            self._interrupted = stop is not None and stop.message == "Ctrl-C"
            print_line(f"({run_summary(result, outcome.failed_hooks, outcome.subagents)})")

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
        """Show the enabled plugins."""
        for plugin in self.plugins.active:
            text = f"{plugin.version}  {short(plugin.description, 60)}".strip()
            print_line(f"  {plugin.name:<16}{text}")
        if not self.plugins.active:
            print_line("  none; 'hookline plugins list' shows all plugins")

    def reload(self) -> None:
        """Reload changed plugins."""
        if not self.refresh():
            print_line("No plugin has changed.")

    def refresh(self) -> bool:
        """Reload changed plugins and print their names. Return whether any plugin has changed."""
        notes = self.plugins.refresh()
        for note in notes:
            print_line(f"({note})")
        return bool(notes)

    def tokens(self) -> None:
        """Show tokens and cost."""
        now = self.agent.model.count_tokens(self.session.messages)
        used = f"{self.usage.input_tokens:,} in, {self.usage.output_tokens:,} out"
        print_line(f"  {counted(self.turns, 'turn')}: {used}, {cost_text(self.cost)}")
        print_line(f"  size of the conversation: about {counted(now, 'token')}")

    def show_session(self) -> None:
        """Show the session."""
        messages = counted(len(self.session.messages), "message")
        saved = (
            f"saved in {short_path(self.settings.sessions)}" if self.name is not None else "not saved (see --session)"
        )
        print_line(f"session {self.name or 'without a name'}: {messages}, {saved}")

    def clear(self) -> None:
        """Start a new conversation with the same personality."""
        self._end_session("clear")
        now = self.session
        self.session = Session(
            self.name or "",
            personality_id=now.personality_id,
            personality_changes=now.personality_changes,
            handed_over_by=now.handed_over_by,
        )
        save_session(self.settings, self.name, self.session)
        print_line("Conversation cleared.")

    def _end_session(self, reason: str) -> None:
        """Tell the hooks that do something at the end of a conversation."""
        for hook in self.answerer.hooks:
            if callable(end := getattr(hook, "end_session", None)):
                end(self.session.id, reason)

    def quit(self) -> None:
        """Quit."""
        self.finished = True


def print_line(text: str) -> None:
    """Print a line to stdout, without control characters."""
    sys.stdout.write(f"{printable(text, keep='')}\n")
    sys.stdout.flush()
