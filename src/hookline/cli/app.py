"""All commands of ``hookline`` in one program."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any

import typer
from typer.main import get_command

from .. import __version__
from .errors import EXIT_CODES
from .help import Group

GROUPS = {
    "Run agents": {
        "run": "Run an agent on one task.",
        "chat": "Chat with an agent.",
        "serve": "Serve the agent over HTTP: a JSON API, A2A, and OpenAI's chat API.",
        "worker": "Execute the durable runs of servers that share a database.",
        "gateway": "Connect the agent to channels such as Slack, Telegram or a web page.",
        "approvals": "Approve or deny tool calls that wait for approval.",
        "runs": "List and delete runs; resume or unpin durable ones.",
        "halt": "Stop all runs of the project or the fleet at once, until you release them.",
        "keys": "List, add and revoke API keys for hookline serve.",
        "protect": "Put hooks into the coding agents on this machine, and prove that a denial arrives.",
        "agent-hook": "Protect a session of a coding agent with hooks of Hookline.",
        "mcp-gateway": "Guard MCP servers: hooks judge the calls of their tools, and changed tools are hidden.",
        "mcp-pins": "Show the approved tools of MCP servers, and approve what is new or has changed.",
    },
    "Write hooks": {
        "new": "Write an agent, hook, tool, plugin or personality to start from.",
        "hooks": "Show which hooks run at which point, in order.",
        "rules": "Check, test and explain rules that are data, in files such as rules.toml.",
        "points": "Show the points at which hooks run, or the details of one.",
    },
    "See what happened": {
        "record": "List, show, label, export or delete recorded runs.",
        "explain": "Show each step of a recorded run, and what each hook decided.",
        "diff": "Show two recorded runs side by side.",
        "stats": "Show statistics of runs: models, tools, hooks, tokens, cost and time.",
        "spending": "Show what users, sessions and agents have spent of their limits, or let one spend again.",
        "audit": "Verify, show or search audit logs, or create a key pair for signing.",
    },
    "Test rules on recorded runs": {
        "backtest": "Show which decisions would differ under other rules.",
        "coverage": "Show which tools and arguments no guard has looked at.",
        "suggest": "Propose rules from recorded runs, with what they would cost.",
        "replay": "Replay tapes under other hooks, and show what differs.",
        "import": "Import logs of Claude Code, OpenAI or OpenTelemetry.",
    },
    "Teams and plugins": {
        "personalities": "Show the personalities an agent can take on.",
        "tickets": "Create, list and move tickets on a board.",
        "skills": "Show, review, accept or reject skills that agents have learned.",
        "plugins": "List, check, enable or disable plugins.",
    },
    "Set up": {
        "config": "Show every setting, its value, and where it comes from.",
        "trust": "Show a configuration file and the code that it loads, and trust them.",
        "db": "Create, upgrade, check, fill, back up or repair databases; make a key for their encryption.",
        "models": "List, download or remove models.",
        "doctor": "Check the installation, coding agents, the shell's sandbox and the configured model.",
    },
}
"""Every command with its summary, in the order of the help page.

The modules of the commands are imported only when they are used, so the help page needs the summaries here. A test
compares them with the help of the commands.
"""

COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}

EPILOG = """
Examples:
  hookline run "What is in this folder?"
  git diff | hookline run "Review this" --hooks rules.py
  hookline new agent desk

Exit codes:
""" + "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items())

_CONTEXT: Any = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Commands(MutableMapping[str, Any]):
    """The commands by name; each is imported when it is first looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            if name not in COMMANDS:
                raise KeyError(name)
            app = typer.Typer(rich_markup_mode=None, context_settings=_CONTEXT)
            app.callback()(root)  # makes it a group even with one command
            module = f"{name}_" if iskeyword(name) else name.replace("-", "_")
            import_module(f".{module}", __package__).add_to(app)
            self._loaded[name] = get_command(app).commands[name]  # type: ignore[attr-defined]
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Program(Group):
    """The program ``hookline``."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands without importing them."""
        return list(COMMANDS)

    def summaries(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return the names and summaries of all commands without importing them."""
        return {heading: list(group.items()) for heading, group in GROUPS.items()}


def run_app(args: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    code = make_app().main(list(args) or ["--help"], prog_name="hookline", standalone_mode=False)
    return code if isinstance(code, int) else 0


def make_app() -> Any:
    """Build the program as a Click group."""
    app = typer.Typer(cls=Program, rich_markup_mode=None, context_settings=_CONTEXT, epilog=EPILOG)
    app.callback()(root)
    program: Any = get_command(app)
    program.commands = Commands()
    return program


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"hookline {__version__}\n")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    """Run LLM agents under hooks that observe, change, block, answer or end what they do."""
