"""Decide which terminal commands run: only those that read, or a developer's ordinary work in a sandbox."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

from .._base.files import is_below
from .._base.secret_files import SECRET_FILES
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_bool, check_folder, check_name_or_names, check_names
from .._toolbox.command_line import (
    CommandError,
    CommandLine,
    Pipeline,
    ShellCommand,
    Word,
    check_characters,
    parse_command,
)
from .._toolbox.processes import search_path
from ._support.tools import find_tool
from ._terminal.developer import check_policy, code_in, possible_commands, program_name, scripts_in
from ._terminal.errors import ApprovalNeededError, BlockedError
from ._terminal.paths import PathScope
from ._terminal.patterns import Pattern, matches, may_occur, parse_patterns
from ._terminal.script import SHELLS, Script, find_commands
from ._terminal.strict import check_arguments, is_listed

_PROGRAM = re.compile(r"[A-Za-z0-9_.+/\[-]+")
_SIGN = re.compile("[=@:,]")
_MAX_SCRIPTS = 10
_MAX_STRING = 300
_NO_NETWORK = ("bubblewrap", "landlock")
"""Sandboxes without a network, unless the tool declares one (``Sandbox(hosts=...)``)."""
_SYSTEM_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/opt/homebrew/bin")
_RUN_COMMANDS = SHELLS | set(
    """
    . builtin busybox chroot command csh doas eval exec expect fish nohup nsenter parallel pkexec pwsh run0 runuser
    screen script setpriv setsid sg source ssh stdbuf su sudo systemd-run tcsh tmux toybox trap unshare watch
    """.split()  # noqa: SIM905
)
"""Programs that run the commands in their arguments. The strict profile blocks them without asking."""
_HINTS = {
    "awk": "Use cut, grep or sed -n '1,20p'",
    "env": "Ask for the value you need",
    "less": "Use head, tail or sed -n '1,100p'",
    "more": "Use head, tail or sed -n '1,100p'",
    "rg": "Use grep -rn",
    "printenv": "Ask for the value you need",
    "tee": "Print it, without writing",
    "test": "Use ls",
    "time": "Run the command without it",
    "timeout": "Run the command without it",
    "xargs": "Name the files, or use grep -r or find",
}


class TerminalGuard:
    """Decides which terminal commands run, are asked about, or are blocked.

    A tool with a sandbox (:func:`shell_tool`) is judged by the profile ``developer``, others by the profile ``strict``.
    ``strict`` allows a few programs that only read, and blocks everything else that you do not allow. The guard parses
    the command line and checks every program in it with its arguments; a command line that it cannot parse is blocked.
    With ``developer``, ordinary work inside the folder runs, steps that discard or publish work, or use the
    network of a sandbox with ``hosts``, need approval, and ``sudo`` is blocked; the sandbox limits what commands do.

    Patterns are lists of words: ``"git commit *"`` matches that program with that first argument and any others; ``?``
    and ``*`` in a word are wildcards. ``deny`` and ``ask`` also match if other words are in between, and where a glob
    or a variable may stand for a word.

    Example::

        TerminalGuard("project", allow=["pytest *"], ask=["git commit *"])
        TerminalGuard("project", profile="developer", deny=["git push *"])

    Args:
        folder: the folder that programs may read in; by default anywhere.
        profile: ``auto`` for the profile that fits the tool, or one of the two for all tools. With ``developer``, calls
            of tools without a sandbox are blocked.
        tools: glob or globs of the names of the tools that run commands.
        argument: the argument with the command line, or with the list of words to run without a shell.
        allow: patterns of further commands that may run. Their arguments are only checked for secret files.
        deny: patterns of commands that must not run; they take precedence.
        ask: patterns of commands that need approval.
        writes: whether ``>`` may write files in the folder, in the profile ``strict``.
        unknown: the treatment of commands that are on no list, in the profile ``strict``: ``block``, or ``ask`` for
            approval.
        secrets: globs of files and folders that must not be touched, such as ``.env`` or ``.git/config``; a glob
            that begins with ``!`` names exceptions.
        protect: globs or paths of further files and folders that ``>`` must not write, besides those that Hookline uses
            and those that make git run code.

    Raises:
        RegistrationError: the folder does not exist, or an argument is invalid.
    """

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        profile: Literal["auto", "strict", "developer"] = "auto",
        tools: str | Iterable[str] = "shell",
        argument: str = "command",
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        ask: Iterable[str] = (),
        writes: bool = False,
        unknown: Literal["block", "ask"] = "block",
        secrets: Iterable[str] = SECRET_FILES,
        protect: Iterable[str] = (),
    ) -> None:
        self.folder = None if folder is None else check_folder(folder, "folder")
        if profile not in ("auto", "strict", "developer"):
            raise RegistrationError(f"profile must be 'auto', 'strict' or 'developer', not {profile!r:.80}")
        if not isinstance(argument, str) or not argument:
            raise RegistrationError(f"argument must be the name of an argument, not {argument!r:.80}")
        if unknown not in ("block", "ask"):
            raise RegistrationError(f"unknown must be 'block' or 'ask', not {unknown!r:.80}")
        self.profile, self.unknown = profile, unknown
        self.tools, self.argument = check_name_or_names(tools, "tools"), argument
        self.writes = check_bool(writes, "writes")
        self._allow, self._deny, self._ask = (
            parse_patterns(given, name) for given, name in ((allow, "allow"), (deny, "deny"), (ask, "ask"))
        )
        self._secrets, self._protected = check_names(secrets, "secrets", 0), check_names(protect, "protect", 0)

    async def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Block the call, or ask for approval, unless its command may run."""
        tool = find_tool(ctx, request.name)
        sandboxed = tool is not None and bool(tool.sandbox)
        if self.profile == "developer" and not sandboxed:
            message = (
                f"The tool {request.name} has no sandbox, which the developer profile needs. Its owner must give it "
                "one (shell_tool with sandbox='auto'), or use TerminalGuard with profile='auto'."
            )
            return HookResult.block(message, reason="no sandbox")
        start = tool.folder if tool is not None else self.folder or os.getcwd()
        command, strict = request.arguments.get(self.argument), self.profile == "strict" or not sandboxed
        network = tool is None or tool.sandbox not in _NO_NETWORK or "network" in (tool.effects or ())
        return await in_thread(self._judge, command, start, strict, network)  # type: ignore[no-any-return]

    def _judge(self, command: Any, start: str, strict: bool, network: bool = True) -> HookResult | None:
        scope = PathScope(start, self.folder, self._secrets, self.writes, self._protected)
        undecided: list[BlockedError] = []
        try:
            if strict:
                self._judge_line(_line(command, self.argument), scope, undecided)
            else:
                self._judge_script(_script(command, self.argument), scope, undecided, network)
        except CommandError as error:
            return HookResult.block(f"Not allowed: {error}.", reason="not understood")
        except BlockedError as refused:
            return HookResult.block(refused.message, reason=refused.reason)
        if not undecided:
            return None
        if self.unknown == "ask" or all(isinstance(problem, ApprovalNeededError) for problem in undecided):
            reasons = dict.fromkeys(problem.reason for problem in undecided)
            return HookResult.ask("May this command run?", reason="; ".join(reasons)[:500])
        first = next(problem for problem in undecided if not isinstance(problem, ApprovalNeededError))
        return HookResult.block(first.message, reason=first.reason)

    def _judge_patterns(self, words: Sequence[Word]) -> bool:
        """Apply the patterns of the user, and return whether one of ``allow`` matches.

        Raises:
            BlockedError: the command matches a pattern of ``deny``.
            ApprovalNeededError: the command matches a pattern of ``ask``.
        """
        program = f"{os.path.basename(words[0].text):.60}"
        for pattern in self._deny:
            if may_occur(pattern, words):
                message = f"{_shown(pattern, program)} is not allowed here. Go on without it."
                raise BlockedError(f"denied: {' '.join(pattern)}", message, final=True)
        for pattern in self._ask:
            if may_occur(pattern, words):
                raise ApprovalNeededError(f"asked: {' '.join(pattern)}", f"{_shown(pattern, program)} needs approval.")
        return any(matches(pattern, words) for pattern in self._allow)

    # The developer profile

    def _judge_script(
        self, script: Script, scope: PathScope, undecided: list[BlockedError], network: bool, depth: int = 0
    ) -> None:
        """Check all commands of a script, and those of scripts inside it (``sh -c '...'``)."""
        if depth > _MAX_SCRIPTS:
            raise BlockedError("nested", "The scripts are nested too deeply. Write a simpler command.", final=True)
        for target in (*script.written, *script.read):
            if not target.pattern:
                scope.check_not_secret(target.text)
        for target in script.written:
            if not target.pattern:
                scope.check_not_protected(target.text)
        _check_code(script.code, scope)
        only_prints = depth == 0 and all(program_name(words[0]) in ("echo", "printf") for words in script.commands)
        for words in script.commands:
            if not only_prints:  # echo .env >> .gitignore
                _check_secrets(words, scope, guess=False)
            for word in words[1:]:
                scope.check_matches_not_secret(word)
            for form in possible_commands(words):
                _check_code(code_in(form), scope)
                try:
                    if not self._judge_patterns(form):
                        check_policy(form, scope.start, network)
                except ApprovalNeededError as needed:
                    undecided.append(needed)
                for text in scripts_in(form):
                    self._judge_script(find_commands(text), scope, undecided, network, depth + 1)

    # The strict profile

    def _judge_line(self, line: CommandLine, scope: PathScope, undecided: list[BlockedError]) -> None:
        """Check every command. Problems that a person may overrule are added to ``undecided``.

        Raises:
            BlockedError: a command is blocked, and a person cannot overrule that.
        """
        for pipeline in line.pipelines:
            for command in pipeline.commands:
                _check_words(command, scope)
                if command.words and command.words[0].text == "cd":
                    if set(line.operators) - {"&&", ""} or len(pipeline.commands) > 1 or pipeline.negated:
                        message = "After cd, only && is allowed: cd FOLDER && COMMAND. Use separate calls for others."
                        raise BlockedError("cd", message, final=True)
                    scope.change_folder(command.words[1:])
                elif command.words:
                    try:
                        self._judge_command(command.words, scope)
                    except BlockedError as refused:
                        if refused.final:
                            raise
                        undecided.append(refused)

    def _judge_command(self, words: Sequence[Word], scope: PathScope) -> None:
        name = self._name(words[0])
        named = words if name is None else (Word(name), *words[1:])
        allowed = any(matches(pattern, form) for pattern in self._allow for form in (words, named))
        asked = None
        for form in possible_commands(named):
            try:
                self._judge_patterns(form)
            except ApprovalNeededError as needed:
                asked = needed
        if allowed and asked is None:
            for word in words[1:]:
                if "glob" in word.expansions:
                    scope.check_glob(word)
            _check_secrets(words, scope)
            return
        try:
            _judge_unlisted(name, words, scope)
        except BlockedError as refused:
            if asked is None or refused.final:
                raise
        if asked is not None:
            raise asked

    def _name(self, word: Word) -> str | None:
        """Return the name of a system program; ``None`` if the word is the path of another file.

        Raises:
            BlockedError: the word does not say which program would run.
        """
        text = word.text
        if word.expansions or not _PROGRAM.fullmatch(text):
            raise BlockedError(
                "program name", f"{text!r:.100} is not the name of a program. Write it plainly.", final=True
            )
        folder, name = os.path.split(text)
        path = search_path()
        if "/" in text:
            found = shutil.which(name, path=path) if folder in _SYSTEM_FOLDERS and os.path.exists(text) else None
            return name if found is not None and os.path.samefile(text, found) else None
        inside = () if self.folder is None else _path_entries_in(path, self.folder)
        if inside and shutil.which(text, path=path) in [os.path.join(folder, text) for folder in inside]:
            message = f"{text} is a file in the folder, not a system program. It may not run."
            raise BlockedError("program in the folder", message, final=True)
        return text


def _shown(pattern: Pattern, program: str) -> str:
    """Return what a pattern forbids, for the model: ``git push *`` is ``git push``."""
    text = " ".join(pattern).removesuffix(" *")
    return program if "*" in text else f"{text:.60}"


def _judge_unlisted(name: str | None, words: Sequence[Word], scope: PathScope) -> None:
    """Check a command that no pattern of the user matches."""
    if name is None:
        scope.check_inside(words)
        message = (
            f"{words[0].text!r:.100} is not allowed: it is not a system program. Use a system program by its name."
        )
        raise BlockedError("program in a folder", message)
    if name in _RUN_COMMANDS:
        message = f"{name} is not allowed, because it runs other commands. Write those commands themselves."
        raise BlockedError(f"runs commands: {name}", message, final=True)
    if not is_listed(name):
        for word in words[1:]:
            if "glob" in word.expansions:
                scope.check_glob(word)
        scope.check_inside(words[1:])
        hint = _HINTS.get(name, "Use one of those, or go on without it")
        listed = "Only listed programs run here, such as ls, cat, grep and find"
        raise BlockedError(f"program: {name:.60}", f"{listed}; {name:.60} is not one of them. {hint}.")
    check_arguments(name, words[1:], scope)


def _check_words(command: ShellCommand, scope: PathScope) -> None:
    """Check the expansions, variables and redirects of a command in the strict profile."""
    for assignment in command.assignments:
        message = f"Setting {assignment.name:.60} is not allowed. Leave it out."
        raise BlockedError(f"environment: {assignment.name:.60}", message, final=True)
    for word in (*command.words, *(redirect.target for redirect in command.redirects)):
        shown = f"{word.raw!r:.100}"
        if "variable" in word.expansions:
            message = f"{shown} contains a variable. Write the value itself, or $ in single quotes."
            raise BlockedError("expansion", message, final=True)
        if word.expansions & {"brace", "history", "tilde"}:
            message = f"{shown} is not clear. Write it out, or put it in single quotes."
            raise BlockedError("expansion", message, final=True)
    for redirect in command.redirects:
        if "glob" in redirect.target.expansions:
            message = f"{redirect.target.raw!r:.100} is not the name of one file. Write it out."
            raise BlockedError("redirect", message, final=True)
        if redirect.operator == "<":
            scope.check_read(redirect.target)
        elif redirect.operator != ">&":
            scope.check_write(redirect.target)


def _check_secrets(words: Sequence[Word], scope: PathScope, guess: bool = True) -> None:
    """Check that no argument names a secret file, as a whole or after an option or sign (``-Tfile``, ``@file``).

    Without ``guess``, only text that looks like a path or names an existing file counts: not ``process.env`` in ``grep
    process.env``.
    """
    for text in dict.fromkeys(word.text for word in words[1:]):
        signs = [found.end() for found in _SIGN.finditer(text)][:20]
        for at in [0, *([2] if text.startswith("-") else []), *signs]:
            if guess or _names_file(text[at:], scope):
                scope.check_not_secret(text[at:])


def _check_code(code: Iterable[str], scope: PathScope) -> None:
    """Check that no text between quotes in the code for an interpreter names a secret file."""
    for text in dict.fromkeys(text for each in code for text in re.split("['\"`]", each)[1:-1]):
        if 0 < len(text) < _MAX_STRING and _names_file(text, scope):
            scope.check_not_secret(text)


def _names_file(text: str, scope: PathScope) -> bool:
    """Return whether a word is the path of a file that exists, or looks like a path (``.env``, ``keys/a.pem``)."""
    looks_like_path = (text.startswith(".") or "/" in text) and not re.search(r"[\s\\]", text)
    return looks_like_path or os.path.lexists(os.path.join(scope.start, text))


@lru_cache(maxsize=64)
def _path_entries_in(path: str, folder: str) -> tuple[str, ...]:
    """Return the entries of a search path that are inside a folder."""
    return tuple(part for part in path.split(os.pathsep) if is_below(os.path.realpath(part), folder))


def _line(command: Any, argument: str) -> CommandLine:
    """Parse the command of a call for the strict profile."""
    if isinstance(command, str):
        return parse_command(command)
    return CommandLine((Pipeline((ShellCommand(_words(command, argument)),)),), ("",))


def _script(command: Any, argument: str) -> Script:
    """Parse the command of a call for the developer profile."""
    script = find_commands(command) if isinstance(command, str) else Script([_words(command, argument)])
    if not script.commands and isinstance(command, str) and not command.strip():
        raise CommandError("the command is empty")
    return script


def _words(command: Any, argument: str) -> tuple[Word, ...]:
    if not isinstance(command, (list, tuple)) or not command or not all(isinstance(word, str) for word in command):
        raise CommandError(f"{argument!r} must be a command line, or a list of words")
    for word in command:
        check_characters(word)
    return tuple(Word(word, word) for word in command)
