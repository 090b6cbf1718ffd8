"""``hookline claude-hook``: protect a session of Claude Code with hooks of Hookline."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from typing import Annotated

import typer

from ..adapters.claude_code.command.client import run
from ..adapters.claude_code.command.options import IDLE, SECONDS, Options
from .errors import print_note
from .help import Command

EPILOG = """
Examples:
  hookline claude-hook rules.py --print-settings
  echo '{"session_id": "a", "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "sudo ls"}}'
      | hookline claude-hook rules.py

RULES is FILE.py, FILE.py:name, module:name, the name of a built-in hook, or a hookline.toml. Claude Code runs this
command for each event: it reads the event from stdin and prints the answer. --print-settings prints what belongs into
.claude/settings.json.

Hooks know the tools of Claude Code by Hookline's names: Bash is shell, Read, Write and Edit are read_file, write_file
and edit_file with the argument path, Glob is list_files, Grep is find_text, WebFetch is fetch. Other names stay.

Codex, and agents that are not recognised, get only answers that they obey: a question, and a change that the agent does
not apply, is a denial there.

The first call starts a process that keeps the hooks in memory, so that the next calls take a few hundredths of a second
of CPU. It ends when it is not used, and starts again when the rules change.

Exit codes:
  0    the answer is on stdout; without one, nothing speaks against the event
  2    blocked; the reason is on stderr. Claude Code gets this if the event could not be judged (the rules or the input
       are broken, or a hook failed), other agents for every denial
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("claude-hook", cls=Command, epilog=EPILOG)(claude_hook)


def claude_hook(
    rules: Annotated[list[str], typer.Argument(metavar="RULES", help="The hooks.")],
    print_settings: Annotated[
        bool, typer.Option("--print-settings", help="Print the settings for Claude Code, and answer nothing.")
    ] = False,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL=NAME", help="Another name for a tool, or TOOL.ARGUMENT=NAME. Repeatable."),
    ] = None,
    sandboxed: Annotated[
        bool,
        typer.Option(
            "--sandboxed", help="Claude Code runs Bash in its own sandbox: for TerminalGuard's developer profile."
        ),
    ] = False,
    allow_rewritten: Annotated[
        bool, typer.Option("--allow-rewritten", help="Run calls that a hook has changed without asking you.")
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
    """Protect a session of Claude Code with hooks of Hookline."""
    options = Options(
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
    _print_settings(options, _command(options))
    return 0


def _command(options: Options) -> str:
    """Return the command for the settings: of this program, which need not be on the path of Claude Code."""
    program = shutil.which(sys.argv[0]) or sys.argv[0]
    is_own = os.path.basename(program).startswith("hookline")
    words = [os.path.abspath(program)] if is_own else [sys.executable, "-P", "-m", "hookline"]
    words = [shlex.quote(word) for word in (*words, "claude-hook")]
    for rule in options.rules:
        inside = rule.startswith(options.folder + os.sep)
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


def _print_settings(options: Options, command: str) -> None:
    from ..adapters.claude_code.command.rules import Rules, parse_tools

    parse_tools(options.tools)  # report mistakes now
    found = Rules.load(options.rules)
    # Claude Code runs a call if a hook takes too long or cannot be started. So it waits longer than the command does,
    # and versions that know onFailure block the call.
    handler = {"type": "command", "command": command, "timeout": int(options.seconds) + 5, "onFailure": "block"}
    settings = {"hooks": {event: [{"hooks": [handler]}] for event in found.events()}}
    sys.stdout.write(json.dumps(settings, indent=2) + "\n")
    for unused in found.not_called():
        print_note(f"this has no effect in Claude Code: {unused}")
