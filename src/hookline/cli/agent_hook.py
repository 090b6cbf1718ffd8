"""``hookline agent-hook``: protect a session of a coding agent with hooks of Hookline."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .._base.text import did_you_mean
from ..adapters.coding_agents import client
from ..adapters.coding_agents.command import run
from ..adapters.coding_agents.options import AGENTS, IDLE, SECONDS, Options
from .errors import print_note
from .help import Command

if TYPE_CHECKING:
    from ..adapters.coding_agents.rules import Rules

EPILOG = """
Examples:
  hookline agent-hook --agent claude rules.py --print-settings
  echo '{"session_id": "a", "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "sudo ls"}}'
      | hookline agent-hook --agent codex rules.py

RULES is FILE.py, FILE.py:name, rules.toml, module:name, the name of a built-in hook, or a hookline.toml. The coding
agent runs this command for each event: it reads the event from stdin and prints the answer. hookline protect puts it
into the settings of the agents on this machine, and --print-settings prints what belongs there.

Hooks know the tools of all agents by Hookline's names: shell, read_file, write_file, edit_file, apply_patch,
list_files, find_text and fetch. Other names stay.

An agent gets only answers that it obeys: where it cannot ask its user on behalf of a hook, or does not apply a change,
a question or a changed call is a denial.

The first call starts a process that keeps the hooks in memory, so that the next calls take a few hundredths of a second
of CPU. It ends when it is not used, and starts again when the rules change.

Exit codes:
  0    the answer is on stdout; without one, nothing speaks against the event
  2    blocked; the reason is on stderr. Agents get this if the event could not be judged (the rules or the input are
       broken, or a hook failed), and most of them for every denial
"""

_PLACES = {
    "claude": ".claude/settings.json",
    "codex": "~/.codex/hooks.json, then trust it with /hooks in Codex",
    "copilot": "~/.copilot/hooks/hookline.json",
    "cursor": "~/.cursor/hooks.json",
    "gemini": "~/.gemini/settings.json",
    "opencode": "~/.config/opencode/plugin/hookline.js",
    "qwen": "~/.qwen/settings.json",
}
"""Where the settings belong."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("agent-hook", cls=Command, epilog=EPILOG)(agent_hook)


def _checked_agent(agent: str) -> str:
    if agent not in AGENTS:
        raise typer.BadParameter(f"{agent!r:.80} is not known.{did_you_mean(agent, AGENTS)} Known: {', '.join(AGENTS)}")
    return agent


def agent_hook(
    rules: Annotated[list[str], typer.Argument(metavar="RULES", help="The hooks.")],
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            metavar="AGENT",
            help=f"The coding agent that runs this: {', '.join(AGENTS)}.",
            callback=_checked_agent,
        ),
    ],
    print_settings: Annotated[
        bool, typer.Option("--print-settings", help="Print the settings for the agent, and answer nothing.")
    ] = False,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL=NAME", help="Another name for a tool, or TOOL.ARGUMENT=NAME. Repeatable."),
    ] = None,
    sandboxed: Annotated[
        bool,
        typer.Option(
            "--sandboxed", help="The agent runs commands in its own sandbox: for TerminalGuard's developer profile."
        ),
    ] = False,
    allow_rewritten: Annotated[
        bool,
        typer.Option("--allow-rewritten", help="In Claude Code, run calls that a hook has changed without asking you."),
    ] = False,
    timeout: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Block if there is no answer by then.")] = int(
        SECONDS
    ),
    idle: Annotated[
        int,
        typer.Option(min=1, metavar="SECONDS", help="End the process with the hooks when it was not used for so long."),
    ] = int(IDLE),
    once: Annotated[
        bool, typer.Option("--once", help="Start no process: load the hooks, answer, and forget their state.")
    ] = False,
) -> int:
    """Protect a session of a coding agent with hooks of Hookline."""
    options = Options(
        agent,
        rules,
        tool or (),
        sandboxed=sandboxed,
        allow_rewritten=allow_rewritten,
        seconds=timeout,
        idle=idle,
        once=once,
    )
    if not print_settings:
        return run(options)
    _print_settings(options)
    return 0


def settings_command(options: Options, *, absolute: bool = False) -> str:
    """Return the command for the settings: of this installation, which need not be on the path of the agent.

    Args:
        options: the options of the command.
        absolute: whether rules in the project are named by their full paths too.
    """
    entry = os.path.join(os.path.dirname(os.path.abspath(client.__file__)), "entry.py")
    flags = ("-P",) if options.once else ("-I", "-S")
    words = [sys.executable, *flags, entry, "agent-hook", "--agent", options.agent]
    words = [shlex.quote(word) for word in words]
    for rule in options.rules:
        # Other agents set no such variable.
        inside = not absolute and options.agent == "claude" and rule.startswith(options.folder + os.sep)
        name = rule.removeprefix(options.folder + os.sep) if inside else rule
        words.append(f'"$CLAUDE_PROJECT_DIR"/{shlex.quote(name)}' if inside else shlex.quote(rule))
    for flag, value in (("--sandboxed", options.sandboxed), ("--allow-rewritten", options.allow_rewritten)):
        words += [flag] if value else []
    words += ["--once"] if options.once else []
    for entry in options.tools:
        words += ["--tool", shlex.quote(entry)]
    for flag, given, usual in (("--timeout", options.seconds, SECONDS), ("--idle", options.idle, IDLE)):
        words += [flag, f"{given:g}"] if given != usual else []
    return " ".join(words)


def settings_text(options: Options, rules: Rules, *, absolute: bool = False) -> str:
    """Return the settings for an agent, in which it calls this program with these rules."""
    from ..adapters.coding_agents.codecs import codec_of

    # Agents run a call if a hook takes too long, so the agent waits longer than the command does.
    command = settings_command(options, absolute=absolute)
    return codec_of(options.agent).settings(command, rules.kinds(), int(options.seconds) + 5)


def _print_settings(options: Options) -> None:
    from ..adapters.coding_agents.codecs import codec_of
    from ..adapters.coding_agents.rules import Rules
    from ..adapters.coding_agents.tools import ToolMap

    codec = codec_of(options.agent)
    ToolMap(codec, options.tools)  # report mistakes now
    found = Rules.load(options.rules)
    sys.stdout.write(settings_text(options, found).rstrip("\n") + "\n")
    print_note(f"for {codec.title}, put this into {_PLACES[options.agent]}")
    for unused in found.not_called():
        print_note(f"this has no effect in {codec.title}: {unused}")
