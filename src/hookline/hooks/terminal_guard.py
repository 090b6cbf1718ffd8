"""A guard that lets an agent's terminal do no more than read."""

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
from ._terminal.allowlist import HINTS, NICE, OPAQUE, SYSTEM_FOLDERS, TIMEOUT, VARIABLES
from ._terminal.arguments import judge_program, knows
from ._terminal.options import Refused, read_options
from ._terminal.paths import Place, is_below

_PROGRAM = re.compile(r"[A-Za-z0-9_.+/\[-]+")
_SIGN = re.compile("[=@:,]")
_VALUE = re.compile(r"[A-Za-z0-9_@+-]*(?:\.[A-Za-z0-9-]+)?|[A-Za-z]+/[A-Za-z0-9_/+-]+")


class TerminalGuard:
    """Blocks terminal commands, but for those that only read and those that you allow.

    A command line is parsed, and every program in it judged with its arguments; what is not understood is blocked.
    Patterns are lists of words: ``"git commit *"`` is that program with that first word and any further ones,
    ``?`` and ``*`` in a word are wildcards. What ``allow`` names is your choice: its arguments are only looked
    through for secrets. ``deny`` and ``ask`` also find their words with others in between.

    Args:
        folder: where the paths of programs that read must lead; anywhere if left out.
        tools: glob or globs of the names of the tools that run commands.
        argument: which of their arguments is the command line, or the list of words that is run without a shell.
        allow: patterns of further commands that may run.
        deny: patterns of commands that may not, whatever else is said.
        ask: patterns of commands that need approval.
        writes: whether ``>`` may write files, in the folder.
        unknown: what happens to what is on no list: ``block``, or ``ask`` for approval.
        secrets: globs of files and folders, such as ``.env`` or ``.git/config``, that may not be touched; one that
            begins with ``!`` names exceptions.
        keep: globs of files and folders, or paths, that ``>`` may not write.

    Raises:
        RegistrationError: there is no such folder, or a value that makes no sense.
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
        keep: Iterable[str] = (),
    ) -> None:
        self.folder = None if folder is None else check_folder(folder, "folder")
        if not isinstance(argument, str) or not argument:
            raise RegistrationError(f"argument is the name of an argument, not {argument!r:.80}")
        if unknown not in ("block", "ask"):
            raise RegistrationError(f"unknown is 'block' or 'ask', not {unknown!r:.80}")
        self.tools, self.argument, self.unknown = check_name_or_names(tools, "tools"), argument, unknown
        self.writes = check_bool(writes, "writes")
        self._allow, self._deny, self._ask = _patterns(allow, "allow"), _patterns(deny, "deny"), _patterns(ask, "ask")
        self._secrets, self._keep = check_names(secrets, "secrets", 0), check_names(keep, "keep", 0)

    async def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Judge one call."""
        tool = find_tool(ctx, request.name)
        start = tool.folder if tool is not None else self.folder or os.getcwd()
        return await in_thread(self._judge, request.arguments.get(self.argument), start)  # type: ignore[no-any-return]

    def _judge(self, command: Any, start: str) -> HookResult | None:
        place = Place(start, self.folder, self._secrets, self.writes, self._keep)
        doubts: list[Refused] = []
        try:
            self._judge_line(_line(command, self.argument), place, doubts)
        except CommandError as error:
            return HookResult.block(f"Not allowed: {error}.", reason="not understood")
        except Refused as refused:
            return HookResult.block(refused.message, reason=refused.reason)
        if not doubts:
            return None
        if self.unknown == "ask" or all(isinstance(doubt, _Asked) for doubt in doubts):
            reasons = dict.fromkeys(doubt.reason for doubt in doubts)
            return HookResult.ask("May this command run?", reason="; ".join(reasons)[:500])
        first = next(doubt for doubt in doubts if not isinstance(doubt, _Asked))
        return HookResult.block(first.message, reason=first.reason)

    def _judge_line(self, line: CommandLine, place: Place, doubts: list[Refused]) -> None:
        """Judge every command; what a person may decide is added to the doubts.

        Raises:
            Refused: what nobody may decide.
        """
        group: list[Pipeline] = []
        certain = True
        for pipeline, joint in zip(line.pipelines, line.joints, strict=True):
            group.append(pipeline)
            certain = certain and joint != "||" and not pipeline.negated
            if joint not in ("&&", "||"):
                self._judge_group(group, place, doubts, certain, joint == "&")
                group, certain = [], True

    def _judge_group(
        self, group: Sequence[Pipeline], place: Place, doubts: list[Refused], certain: bool, apart: bool
    ) -> None:
        """Judge pipelines between two ``;``. A ``cd`` that may not happen leaves two places to judge from."""
        possible = place.starts
        for number, pipeline in enumerate(group):
            for command in pipeline.commands:  # they all run at once
                _judge_redirects(command, place)
            for command in pipeline.commands:
                before = place.starts
                try:
                    self._judge_command(command, pipeline, place)
                except Refused as refused:
                    if refused.final:
                        raise
                    doubts.append(refused)
                if not certain:
                    place.starts = _together(before, place.starts)
                elif number == 0 and not apart and all(map(_can_enter, place.starts)):
                    possible = place.starts
        place.starts = _together(possible, place.starts)

    def _judge_command(self, command: Command, pipeline: Pipeline, place: Place) -> None:
        for word in command.words:
            _judge_expansions(word)
        for assignment in command.assignments:
            value = assignment.value
            if assignment.name not in VARIABLES or value.expansions or not _VALUE.fullmatch(value.text):
                message = f"Setting {assignment.name:.60} is not allowed. Leave it out."
                raise Refused(f"environment: {assignment.name:.60}", message, final=True)
        if not command.words:
            return
        for word in command.words:
            if "glob" in word.expansions:
                place.match(word)
        if command.words[0].text == "cd":
            if len(pipeline.commands) > 1:
                raise Refused("cd", "cd has no effect in a pipeline. Write cd FOLDER && COMMAND.", final=True)
            place.move(command.words[1:])
        else:
            self._judge_words(command.words, place)

    def _judge_words(self, words: Sequence[Word], place: Place) -> None:
        """Judge a program with its arguments, and the one inside if it only starts another.

        Raises:
            Refused: it may not run.
        """
        written = [word.text for word in words]
        name = self._name(words[0])
        named = [name or written[0], *written[1:]]
        for pattern in self._deny:
            if any(_found(pattern, form) for form in (written, named)):
                message = f"{named[0]:.60} is not allowed here. Go on without it."
                raise Refused(f"denied: {' '.join(pattern)}", message, final=True)
        asked = next((p for p in self._ask if any(_found(p, form) for form in (written, named))), None)
        if asked is None and any(_matches(p, form) for p in self._allow for form in (written, named)):
            for text in written[1:]:
                for form in _paths_in(text):
                    place.spare(form)
            return
        try:
            self._judge_unlisted(name, words, place)
        except Refused as refused:
            if asked is None or refused.final:
                raise
        if asked is not None:
            raise _Asked(f"asked: {' '.join(asked)}", f"{named[0]:.60} needs approval.")

    def _judge_unlisted(self, name: str | None, words: Sequence[Word], place: Place) -> None:
        if name is None:
            place.keep_in(words)
            message = f"{words[0].text!r:.100} is not allowed: it is not a program of the system. Use one by its name."
            raise Refused("program in a folder", message)
        if name in OPAQUE:
            message = f"{name} is not allowed, because it runs other commands. Write those commands themselves."
            raise Refused(f"runs commands: {name}", message, final=True)
        if name in ("timeout", "nice", "time"):
            self._judge_words(_inner(name, words[1:]), place)
            return
        if not knows(name):
            place.keep_in(words[1:])
            hint = HINTS.get(name, "Use programs that only read, such as ls, cat, grep and find, or go on without it")
            raise Refused(f"program: {name:.60}", f"{name:.60} is not allowed. {hint}.")
        judge_program(name, words[1:], place)

    def _name(self, word: Word) -> str | None:
        """The name a program is judged by; ``None`` if it is a file somewhere.

        Raises:
            Refused: it is not clear what would run.
        """
        text = word.text
        if word.expansions or not _PROGRAM.fullmatch(text):
            raise Refused("program name", f"{text!r:.100} is not the name of a program. Write it plainly.", final=True)
        folder, name = os.path.split(text)
        path = search_path()
        if "/" in text:
            found = shutil.which(name, path=path) if folder in SYSTEM_FOLDERS and os.path.exists(text) else None
            return name if found is not None and os.path.samefile(text, found) else None
        inside = () if self.folder is None else _inside(path, self.folder)
        if inside and shutil.which(text, path=path) in [os.path.join(folder, text) for folder in inside]:
            message = f"{text} is a file of the folder, not a program of the system. It may not run."
            raise Refused("program in the folder", message, final=True)
        return text


@lru_cache(maxsize=64)
def _inside(path: str, folder: str) -> tuple[str, ...]:
    """The parts of a search path that lie in a folder."""
    return tuple(part for part in path.split(os.pathsep) if is_below(os.path.realpath(part), folder))


def _can_enter(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.X_OK)


def _together(*starts: Sequence[str]) -> tuple[str, ...]:
    union = tuple(dict.fromkeys(start for some in starts for start in some))
    if len(union) > 16:
        raise Refused("cd", "There are too many cd in this command. Use fewer.", final=True)
    return union


class _Asked(Refused):
    """What a pattern of ``ask`` says."""


def _line(command: Any, argument: str) -> CommandLine:
    """The command of a call as a tree."""
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
        message = f"{shown} holds a variable. Write the value itself, or $ in single quotes."
        raise Refused("expansion", message, final=True)
    if word.expansions & {"brace", "history"}:
        raise Refused("expansion", f"{shown} is not clear. Write it out, or put it in single quotes.", final=True)


def _judge_redirects(command: Command, place: Place) -> None:
    for redirect in command.redirects:
        _judge_expansions(redirect.target)
        if redirect.operator == "<":
            _no_glob(redirect.target)
            place.read(redirect.target)
        elif redirect.operator != ">&":
            place.write(redirect.target)


def _no_glob(word: Word) -> None:
    if "glob" in word.expansions:
        raise Refused("redirect", f"{word.raw!r:.100} is not the name of one file. Write it out.", final=True)


def _inner(name: str, args: Sequence[Word]) -> list[Word]:
    """The command inside ``timeout``, ``nice`` or ``time``."""
    if name == "time":
        words = list(args[1:] if args and args[0].text == "-p" else args)
    else:
        given = read_options(name, TIMEOUT if name == "timeout" else NICE, args, bound=False, permuted=False)
        words = given.operands[1:] if name == "timeout" else given.operands
    if not words or words[0].text == "cd":
        raise Refused(f"program: {name}", f"{name} needs a command after it.")
    return words


def _paths_in(text: str) -> list[str]:
    """What may be a path in an argument: itself, and what follows a letter or a sign (``-Tfile``, ``@file``)."""
    signs = [found.end() for found in _SIGN.finditer(text)][:20]
    return [text, *(text[at:] for at in ([2] if text.startswith("-") else []) + signs)]


def _patterns(given: Iterable[str], name: str) -> tuple[tuple[str, ...], ...]:
    patterns = tuple(tuple(pattern.split()) for pattern in check_names(given, name, 0))
    for pattern in patterns:
        if not pattern or pattern[0] == "*":
            raise RegistrationError(f"{name}: a pattern begins with a program, such as 'git commit *'")
    return patterns


def _matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Whether the words are those of the pattern; a ``*`` at its end is any number of further ones."""
    if pattern[-1] == "*":
        pattern = pattern[:-1]
        words = words[: len(pattern)]
    return len(words) == len(pattern) and all(map(fnmatchcase, words, pattern))


def _found(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Whether the program is the pattern's, and its words come in this order, whatever stands between them."""
    if not fnmatchcase(os.path.basename(words[0]), pattern[0]) and not fnmatchcase(words[0], pattern[0]):
        return False
    left = iter(words[1:])
    return all(any(fnmatchcase(word, part) for word in left) for part in pattern[1:] if part != "*")
