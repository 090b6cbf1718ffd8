"""Programs that read commands which are typed later: no hook sees those in some coding agents."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ..._toolbox.command_line import CommandError, Word
from ...hooks._terminal.developer import possible_commands
from ...hooks._terminal.errors import BlockedError
from ...hooks._terminal.script import SHELLS, Script, find_commands, is_interpreter

_ALWAYS = frozenset(
    """
    bpython ed emacs ex expect ftp gdb ghci ipython irb jshell lldb login nano nc ncat netcat nvim pdb pico pry scala
    screen script sftp socat su telnet tmux vi view vim
    """.split()  # noqa: SIM905
)
_CLIENTS = {
    "mariadb": (re.compile(r"-[a-zA-Z]*e|--execute"), 99),
    "mongosh": (re.compile(r"--eval|-f|--file"), 99),
    "mysql": (re.compile(r"-[a-zA-Z]*e|--execute"), 99),
    "psql": (re.compile(r"-[a-zA-Z]*[cfl]|--command|--file|--list"), 99),
    "redis-cli": (re.compile(r"--eval|--scan|--stat"), 1),
    "sqlite3": (re.compile(r"-cmd|-batch"), 2),
    "ssh": (re.compile(r"-[GNVQ]"), 2),
}
"""Clients with the options that make them end by themselves, and the number of operands with which they do."""
_CONTAINERS = frozenset(("docker", "kubectl", "podman"))
_CODE_OPTION = re.compile(r"-[a-zA-Z]*[cemprE]|--eval|--print|--version|--help|-V|-h")
_ENDS = frozenset(("--version", "--help", "-V", "-h"))


def reads_typed_commands(command: str) -> str:
    """Return the program in a shell command that would run what is typed into it later; empty if there is none.

    A command that cannot be read counts as such a program.
    """
    try:
        script = find_commands(command)
        for number, words in enumerate(script.commands):
            if number in script.fed or _has_written_input(script, number):
                continue
            for possible in possible_commands(words):
                if possible and (name := _reading(possible)):
                    return name
    except (CommandError, BlockedError):
        return "A program in this command, which cannot be read,"
    return ""


def _has_written_input(script: Script, number: int) -> bool:
    """Return whether all of the input of a command comes from words of ``echo``, or from files of ``cat``."""
    if number not in script.piped:
        return False
    words = script.commands[script.piped[number]]
    name = os.path.basename(words[0].text)
    return name in ("echo", "printf") or (name == "cat" and any(not _is_input(word) for word in words[1:]))


def _is_input(word: Word) -> bool:
    return word.text.startswith(("-", "/dev/", "/proc/"))


def _reading(words: Sequence[Word]) -> str:
    """Return the name of a program that reads commands from its input; empty if it does not."""
    name = os.path.basename(words[0].text)
    options = [word.text for word in words[1:] if word.text.startswith("-")]
    operands = [word.text for word in words[1:] if not word.text.startswith("-")]
    letters = "".join(text for text in options if not text.startswith("--"))
    if _ENDS.intersection(options):
        reads = False
    elif name in SHELLS:
        reads = "i" in letters or "s" in letters or ("c" not in letters and not operands)
    elif is_interpreter(words[0]):
        has_code = bool(operands) or any(map(_CODE_OPTION.match, options))
        reads = "-i" in options or "-" in options or not has_code
    elif name in _CLIENTS:
        ends, needed = _CLIENTS[name]
        reads = len(operands) < needed and not any(map(ends.match, options))
    elif name == "sudo":
        reads = bool({"-i", "-s", "--login", "--shell"}.intersection(options)) and not operands
    elif name in _CONTAINERS:
        reads = bool({"exec", "run", "attach"}.intersection(operands)) and (
            "i" in letters or "--interactive" in options
        )
    else:
        reads = name in _ALWAYS
    return name if reads else ""
