"""The strict profile: a short list of programs that only read, each with a few options.

A command that is not described here is not allowed. The tables omit everything that is rarely needed. These rules apply
to every program:

- Options are written in full. All words with a dash are options, also after operands.
- A glob is allowed only where each file that it matches is a path to read, and never in an option or its value, where
  its matches would shift the words that follow.
- No program on the list runs a command, writes a file, takes options without a dash, or opens files that its arguments
  do not name. The exception is ``grep -r``, for which every file below the folder is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from ..._toolbox.command_line import Word
from .errors import BlockedError
from .git import check_git
from .paths import PathScope

Operands = Literal["paths", "files", "pattern", "text", "none", "format"]


class Arguments(NamedTuple):
    """The parsed arguments of a program: its operands, and the values of each option that is given."""

    operands: list[Word]
    options: dict[str, list[str]]


class Program(msgspec.Struct, frozen=True):
    """The options and operands that a program may have.

    ``short`` lists letters, ``long`` names; a ``:`` after one says that it takes a value, and ``#`` among the letters
    stands for a number (``head -5``). ``operands`` is the kind of the other arguments: ``paths``; regular ``files``; a
    ``pattern`` and then paths (only paths if the option ``e`` is given); ``text``, which is not checked; ``none``; or a
    ``format`` that begins with ``+``.
    """

    short: str = ""
    long: str = ""
    operands: Operands = "paths"


PROGRAMS: dict[str, Program] = {
    "basename": Program(operands="text"),
    "cat": Program("bns"),
    "cmp": Program("ls", operands="files"),
    "comm": Program("123", operands="files"),
    "cut": Program("b:c:d:f:s", "delimiter: fields:"),
    "date": Program("u", operands="format"),
    "df": Program("h", operands="none"),
    "diff": Program("bBiquU:wy", "brief unified:", "files"),
    "dirname": Program(operands="text"),
    "du": Program("acd:hks", "max-depth:"),
    "file": Program("bi"),
    "grep": Program(
        "A:B:C:ce:EFhHiIlLm:noPqrsvwx#",
        "count exclude: exclude-dir: ignore-case include: invert-match line-number recursive",
        "pattern",
    ),
    "head": Program("c:n:#", "bytes: lines:"),
    "id": Program("gGnu", operands="none"),
    "ls": Program("1aAdFhlrRSt", "all almost-all directory human-readable recursive reverse"),
    "md5sum": Program(),
    "nl": Program("b:"),
    "printf": Program(operands="text"),
    "pwd": Program(operands="none"),
    "realpath": Program(),
    "sha256sum": Program(),
    "sort": Program("bdfghik:Mnrst:uV", "field-separator: key: numeric-sort reverse unique"),
    "stat": Program("c:", "format:"),
    "tail": Program("c:n:#", "bytes: lines:"),
    "tr": Program("cCds", operands="text"),
    "tree": Program("adL:"),
    "uname": Program("amnrs", operands="none"),
    "uniq": Program("cdf:is:uw:", "count repeated skip-fields: unique", "none"),  # a second operand would be written
    "wc": Program("clLmw", "bytes chars lines words"),
    "which": Program("a", operands="text"),
    "whoami": Program(operands="none"),
}
_ANY_TEXT = ("echo", "false", "sleep", "true")

_SED = Program("nE", "quiet silent regexp-extended")
_SED_SCRIPT = re.compile(r"(?:[0-9]+|\$)(?:,(?:[0-9]+|\$))?p")
_FIND_TESTS = ("-name", "-iname", "-path", "-type", "-size", "-mtime", "-mmin", "-maxdepth", "-mindepth")
_FIND_WORDS = ("-a", "-o", "-not", "!", "(", ")", "-empty", "-print", "-prune")
_NUMBER = re.compile(r"[-+]?[0-9]+[A-Za-z]{0,3}")


def is_listed(name: str) -> bool:
    """Return whether the strict profile knows a program."""
    return name in PROGRAMS or name in _OWN_CHECKS or name in _ANY_TEXT


def check_arguments(name: str, args: Sequence[Word], scope: PathScope) -> None:
    """Check the arguments of a program that :func:`is_listed`.

    Raises:
        BlockedError: the arguments could do more than read, or name a forbidden path.
    """
    if name in _OWN_CHECKS:
        _OWN_CHECKS[name](args, scope)
    elif name in _ANY_TEXT:
        reject_globs(args)
    else:
        given = parse_options(name, PROGRAMS[name], args)
        _check_operands(name, PROGRAMS[name].operands, given, scope)


def _check_operands(name: str, kind: Operands, given: Arguments, scope: PathScope) -> None:
    operands = given.operands
    if kind == "none" and operands:
        raise BlockedError(f"operands: {name}", f"{name} takes no arguments here. Leave them out.")
    if kind == "format" and not all(operand.text.startswith("+") for operand in operands):
        raise BlockedError(f"operands: {name}", f"{name} takes only a format such as +%F here.")
    paths = operands if kind in ("paths", "files") else []
    if kind == "pattern":
        paths = operands if "e" in given.options else operands[1:]
    reject_globs(operands if kind == "files" else operands[: len(operands) - len(paths)])
    for path in paths:
        scope.check_read(path)
        if kind == "files" and path.text != "-" and not scope.is_file(path.text):
            raise BlockedError(f"operands: {name}", f"{name} takes only files here: {path.text!r:.100} is not a file.")
    if given.options.keys() & {"r", "recursive"} and name == "grep":
        options = {name: given.options.get(name, []) for name in ("include", "exclude", "exclude-dir")}
        for path in paths or [Word(".")]:
            scope.check_tree(path.text, options["include"], options["exclude"], options["exclude-dir"])


def reject_globs(words: Sequence[Word]) -> None:
    """Check that no word is a glob, because its matches would become other words.

    Raises:
        BlockedError: a word is a glob.
    """
    for word in words:
        if "glob" in word.expansions:
            message = f"{word.raw!r:.100} may become several words here. Write it out, or put it in quotes."
            raise BlockedError("glob", message, final=True)


def parse_options(name: str, program: Program, args: Sequence[Word]) -> Arguments:
    """Parse options as getopt does.

    Raises:
        BlockedError: an option is not listed, or is not clear.
    """
    short = set(re.findall(r".:?", program.short))
    long = {*program.long.split(), "help", "version"}
    given = Arguments([], {})
    left = list(reversed(args))
    while left:
        word = left.pop()
        text = word.text
        if text == "--":
            given.operands.extend(reversed(left))
            break
        if not text.startswith("-") or text == "-":
            given.operands.append(word)
            continue
        reject_globs([word])
        if "#" in short and text[1:].isascii() and text[1:].isdecimal():
            continue
        if text.startswith("--"):
            option, sign, value = text[2:].partition("=")
            takes_value = f"{option}:" in long
            if not (takes_value or (option in long and not sign)):
                raise _unknown_option(name, f"--{option}")
        else:
            option, takes_value, sign, value = "", False, "", ""
            for at, option in enumerate(text[1:], 2):
                takes_value, sign, value = f"{option}:" in short, text[at:], text[at:]
                if option in "#:" or not (takes_value or option in short):
                    raise _unknown_option(name, f"-{option}")
                if takes_value:
                    break
                given.options.setdefault(option, [])
        values = given.options.setdefault(option, [])
        if takes_value:
            values.append(value if sign else _next_value(name, text, left))
    return given


def _next_value(name: str, shown: str, left: list[Word]) -> str:
    """Take the value of an option from the remaining words."""
    if not left:
        raise BlockedError("option without a value", f"{name} {shown} needs a value after it.")
    value = left.pop()
    reject_globs([value])
    if value.text.startswith("-") and value.text != "-" and not _NUMBER.fullmatch(value.text):
        message = f"It is not clear whether {value.text!r:.60} belongs to {shown:.60}. Write them as one word."
        raise BlockedError("not clear", message)
    return value.text


def _unknown_option(name: str, shown: str) -> BlockedError:
    message = f"{name} {shown:.60} is not allowed. Use few and usual options, written in full."
    return BlockedError(f"option: {name} {shown:.60}", message)


def _check_sed(args: Sequence[Word], scope: PathScope) -> None:
    operands, options = parse_options("sed", _SED, args)
    reject_globs(operands[:1])
    if not (options.keys() & {"n", "quiet", "silent"} and operands and _SED_SCRIPT.fullmatch(operands[0].text)):
        raise BlockedError("script: sed", "sed may only print lines: sed -n '1,20p' FILE.")
    for path in operands[1:]:
        scope.check_read(path)


def _check_find(args: Sequence[Word], scope: PathScope) -> None:
    reject_globs(args)
    left = list(reversed(args))
    started = False
    while left:
        word = left.pop()
        if word.text in _FIND_TESTS:
            started = True
            if not left:
                raise BlockedError("option without a value", f"find {word.text} needs a value after it.")
            left.pop()
        elif word.text in _FIND_WORDS:
            started = True
        elif word.text.startswith("-") or started:
            message = f"find {word.text!r:.60} is not allowed. Find by name, path, type, size and time, and print only."
            raise BlockedError(f"option: find {word.text:.60}", message)
        else:
            scope.check_read(word)


_OWN_CHECKS: dict[str, Callable[[Sequence[Word], PathScope], None]] = {
    "find": _check_find,
    "git": check_git,
    "sed": _check_sed,
}
