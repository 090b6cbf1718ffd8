"""Block terminal commands that do more than read."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal

from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_TOOL
from .._kernel.results import HookResult
from .._toolbox.command_line import (
    Command,
    CommandError,
    CommandLine,
    Pipeline,
    Word,
    check_characters,
    parse_command,
)
from .._toolbox.processes import search_path
from ._support.secret_files import SECRET_FILES
from ._support.tools import find_tool
from ._support.validation import check_bool, check_folder, check_name_or_names, check_names
from ._terminal.allowlist import COMMAND_RUNNERS, HINTS, NICE, SYSTEM_FOLDERS, TIMEOUT, VARIABLES
from ._terminal.arguments import check_arguments, is_listed
from ._terminal.options import BlockedError, parse_options
from ._terminal.paths import PathScope, is_below

_PROGRAM = re.compile(r"[A-Za-z0-9_.+/\[-]+")
_SIGN = re.compile("[=@:,]")
_VALUE = re.compile(r"[A-Za-z0-9_@+-]*(?:\.[A-Za-z0-9-]+)?|[A-Za-z]+/[A-Za-z0-9_/+-]+")


class TerminalGuard:
    """Blocks terminal commands, except those that only read and those that you allow.

    The guard parses the command line and checks every program in it with its arguments. A command line that it cannot
    parse is blocked. Patterns are lists of words: ``"git commit *"`` matches that program with that first argument and
    any others; ``?`` and ``*`` in a word are wildcards. The arguments of commands in ``allow`` are only checked for
    secret files. ``deny`` and ``ask`` also match if other words are in between.

    Example::

        TerminalGuard("project", allow=["pytest *"], ask=["git commit *"])

    Args:
        folder: the folder that programs may read in; by default anywhere.
        tools: glob or globs of the names of the tools that run commands.
        argument: the argument with the command line, or with the list of words to run without a shell.
        allow: patterns of further commands that may run.
        deny: patterns of commands that must not run; they take precedence.
        ask: patterns of commands that need approval.
        writes: whether ``>`` may write files in the folder.
        unknown: the treatment of commands that are on no list: ``block``, or ``ask`` for approval.
        secrets: globs of files and folders that must not be touched, such as ``.env`` or ``.git/config``; a glob
            that begins with ``!`` names exceptions.
        protect: globs or paths of files and folders that ``>`` must not write.

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
        if not isinstance(argument, str) or not argument:
            raise RegistrationError(f"argument must be the name of an argument, not {argument!r:.80}")
        if unknown not in ("block", "ask"):
            raise RegistrationError(f"unknown must be 'block' or 'ask', not {unknown!r:.80}")
        self.tools, self.argument, self.unknown = check_name_or_names(tools, "tools"), argument, unknown
        self.writes = check_bool(writes, "writes")
        self._allow, self._deny, self._ask = _patterns(allow, "allow"), _patterns(deny, "deny"), _patterns(ask, "ask")
        self._secrets, self._protected = check_names(secrets, "secrets", 0), check_names(protect, "protect", 0)

    async def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Block the call, or ask for approval, unless its command may run."""
        tool = find_tool(ctx, request.name)
        start = tool.folder if tool is not None else self.folder or os.getcwd()
        return await in_thread(self._judge, request.arguments.get(self.argument), start)  # type: ignore[no-any-return]

    def _judge(self, command: Any, start: str) -> HookResult | None:
        scope = PathScope(start, self.folder, self._secrets, self.writes, self._protected)
        undecided: list[BlockedError] = []
        try:
            self._judge_line(_line(command, self.argument), scope, undecided)
        except CommandError as error:
            return HookResult.block(f"Not allowed: {error}.", reason="not understood")
        except BlockedError as refused:
            return HookResult.block(refused.message, reason=refused.reason)
        if not undecided:
            return None
        if self.unknown == "ask" or all(isinstance(problem, _ApprovalNeededError) for problem in undecided):
            reasons = dict.fromkeys(problem.reason for problem in undecided)
            return HookResult.ask("May this command run?", reason="; ".join(reasons)[:500])
        first = next(problem for problem in undecided if not isinstance(problem, _ApprovalNeededError))
        return HookResult.block(first.message, reason=first.reason)

    def _judge_line(self, line: CommandLine, scope: PathScope, undecided: list[BlockedError]) -> None:
        """Check every command. Problems that a person may overrule are added to ``undecided``.

        Raises:
            BlockedError: a command is blocked, and a person cannot overrule that.
        """
        group: list[Pipeline] = []
        certain = True
        for pipeline, operator in zip(line.pipelines, line.operators, strict=True):
            group.append(pipeline)
            certain = certain and operator != "||" and not pipeline.negated
            if operator not in ("&&", "||"):
                self._judge_group(group, scope, undecided, certain, operator == "&")
                group, certain = [], True

    def _judge_group(
        self,
        group: Sequence[Pipeline],
        scope: PathScope,
        undecided: list[BlockedError],
        certain: bool,
        background: bool,
    ) -> None:
        """Check the pipelines between two ``;``. After a ``cd`` that may fail, two current folders are possible."""
        possible = scope.starts
        for number, pipeline in enumerate(group):
            for command in pipeline.commands:  # the commands of a pipeline run at the same time
                _judge_redirects(command, scope)
            for command in pipeline.commands:
                before = scope.starts
                try:
                    self._judge_command(command, pipeline, scope)
                except BlockedError as refused:
                    if refused.final:
                        raise
                    undecided.append(refused)
                if not certain:
                    scope.starts = _union(before, scope.starts)
                elif number == 0 and not background and all(map(_can_enter, scope.starts)):
                    possible = scope.starts
        scope.starts = _union(possible, scope.starts)

    def _judge_command(self, command: Command, pipeline: Pipeline, scope: PathScope) -> None:
        for word in command.words:
            _judge_expansions(word)
        for assignment in command.assignments:
            value = assignment.value
            if assignment.name not in VARIABLES or value.expansions or not _VALUE.fullmatch(value.text):
                message = f"Setting {assignment.name:.60} is not allowed. Leave it out."
                raise BlockedError(f"environment: {assignment.name:.60}", message, final=True)
        if not command.words:
            return
        for word in command.words:
            if "glob" in word.expansions:
                scope.check_glob(word)
        if command.words[0].text == "cd":
            if len(pipeline.commands) > 1:
                raise BlockedError("cd", "cd has no effect in a pipeline. Write cd FOLDER && COMMAND.", final=True)
            scope.change_folder(command.words[1:])
        else:
            self._judge_words(command.words, scope)

    def _judge_words(self, words: Sequence[Word], scope: PathScope) -> None:
        """Check a program with its arguments, and the command inside ``timeout``, ``nice`` and ``time``.

        Raises:
            BlockedError: the program must not run.
        """
        written = [word.text for word in words]
        name = self._name(words[0])
        named = [name or written[0], *written[1:]]
        for pattern in self._deny:
            if any(_occurs(pattern, form) for form in (written, named)):
                message = f"{named[0]:.60} is not allowed here. Go on without it."
                raise BlockedError(f"denied: {' '.join(pattern)}", message, final=True)
        asked = next((p for p in self._ask if any(_occurs(p, form) for form in (written, named))), None)
        if asked is None and any(_matches(p, form) for p in self._allow for form in (written, named)):
            for text in written[1:]:
                for form in _paths_in(text):
                    scope.check_not_secret(form)
            return
        try:
            self._judge_unlisted(name, words, scope)
        except BlockedError as refused:
            if asked is None or refused.final:
                raise
        if asked is not None:
            raise _ApprovalNeededError(f"asked: {' '.join(asked)}", f"{named[0]:.60} needs approval.")

    def _judge_unlisted(self, name: str | None, words: Sequence[Word], scope: PathScope) -> None:
        if name is None:
            scope.check_inside(words)
            message = (
                f"{words[0].text!r:.100} is not allowed: it is not a system program. Use a system program by its name."
            )
            raise BlockedError("program in a folder", message)
        if name in COMMAND_RUNNERS:
            message = f"{name} is not allowed, because it runs other commands. Write those commands themselves."
            raise BlockedError(f"runs commands: {name}", message, final=True)
        if name in ("timeout", "nice", "time"):
            self._judge_words(_inner(name, words[1:]), scope)
            return
        if not is_listed(name):
            scope.check_inside(words[1:])
            hint = HINTS.get(name, "Use programs that only read, such as ls, cat, grep and find, or go on without it")
            raise BlockedError(f"program: {name:.60}", f"{name:.60} is not allowed. {hint}.")
        check_arguments(name, words[1:], scope)

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
            found = shutil.which(name, path=path) if folder in SYSTEM_FOLDERS and os.path.exists(text) else None
            return name if found is not None and os.path.samefile(text, found) else None
        inside = () if self.folder is None else _path_entries_in(path, self.folder)
        if inside and shutil.which(text, path=path) in [os.path.join(folder, text) for folder in inside]:
            message = f"{text} is a file in the folder, not a system program. It may not run."
            raise BlockedError("program in the folder", message, final=True)
        return text


@lru_cache(maxsize=64)
def _path_entries_in(path: str, folder: str) -> tuple[str, ...]:
    """Return the entries of a search path that are inside a folder."""
    return tuple(part for part in path.split(os.pathsep) if is_below(os.path.realpath(part), folder))


def _can_enter(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.X_OK)


def _union(*starts: Sequence[str]) -> tuple[str, ...]:
    union = tuple(dict.fromkeys(start for some in starts for start in some))
    if len(union) > 16:
        raise BlockedError("cd", "There are too many cd in this command. Use fewer.", final=True)
    return union


class _ApprovalNeededError(BlockedError):
    """A pattern of ``ask`` matches: the command needs approval."""


def _line(command: Any, argument: str) -> CommandLine:
    """Parse the command of a call."""
    if isinstance(command, str):
        return parse_command(command)
    if isinstance(command, (list, tuple)) and command and all(isinstance(word, str) for word in command):
        for word in command:
            check_characters(word)
        words = tuple(Word(word, word) for word in command)
        return CommandLine((Pipeline((Command(words),)),), ("",))
    raise CommandError(f"{argument!r} must be a command line, or a list of words")


def _judge_expansions(word: Word) -> None:
    shown = f"{word.raw!r:.100}"
    if "variable" in word.expansions:
        message = f"{shown} contains a variable. Write the value itself, or $ in single quotes."
        raise BlockedError("expansion", message, final=True)
    if word.expansions & {"brace", "history"}:
        raise BlockedError("expansion", f"{shown} is not clear. Write it out, or put it in single quotes.", final=True)


def _judge_redirects(command: Command, scope: PathScope) -> None:
    for redirect in command.redirects:
        _judge_expansions(redirect.target)
        if redirect.operator == "<":
            _reject_glob(redirect.target)
            scope.check_read(redirect.target)
        elif redirect.operator != ">&":
            scope.check_write(redirect.target)


def _reject_glob(word: Word) -> None:
    if "glob" in word.expansions:
        raise BlockedError("redirect", f"{word.raw!r:.100} is not the name of one file. Write it out.", final=True)


def _inner(name: str, args: Sequence[Word]) -> list[Word]:
    """Return the command inside ``timeout``, ``nice`` or ``time``."""
    if name == "time":
        words = list(args[1:] if args and args[0].text == "-p" else args)
    else:
        given = parse_options(name, TIMEOUT if name == "timeout" else NICE, args, confined=False, permuted=False)
        words = given.operands[1:] if name == "timeout" else given.operands
    if not words or words[0].text == "cd":
        raise BlockedError(f"program: {name}", f"{name} needs a command after it.")
    return words


def _paths_in(text: str) -> list[str]:
    """Return the possible paths in an argument: itself, and the text after a letter or sign (``-Tfile``, ``@file``)."""
    signs = [found.end() for found in _SIGN.finditer(text)][:20]
    return [text, *(text[at:] for at in ([2] if text.startswith("-") else []) + signs)]


def _patterns(given: Iterable[str], name: str) -> tuple[tuple[str, ...], ...]:
    patterns = tuple(tuple(pattern.split()) for pattern in check_names(given, name, 0))
    for pattern in patterns:
        if not pattern or pattern[0] == "*":
            raise RegistrationError(f"{name}: a pattern must begin with a program, such as 'git commit *'")
    return patterns


def _matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether the words match the pattern; a ``*`` at its end stands for any number of words."""
    if pattern[-1] == "*":
        pattern = pattern[:-1]
        words = words[: len(pattern)]
    return len(words) == len(pattern) and all(map(fnmatchcase, words, pattern))


def _occurs(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether the program matches, and the other words occur in this order, with any words in between."""
    if not fnmatchcase(os.path.basename(words[0]), pattern[0]) and not fnmatchcase(words[0], pattern[0]):
        return False
    left = iter(words[1:])
    return all(any(fnmatchcase(word, part) for word in left) for part in pattern[1:] if part != "*")
