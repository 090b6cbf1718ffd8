"""Parse a command line to a tree: lists of pipelines of simple commands. Nothing is run or expanded here."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

MAX_LENGTH = 100_000
"""Maximum length of a command line in characters."""

_NEVER = re.compile(  # control characters, surrogates, and characters that change the text direction or break the line
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_PLAIN = re.compile(r"[A-Za-z0-9_./,:=@%+^\]-]+")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_DESCRIPTOR = re.compile(r"[0-9]+(?=[<>])")
_BLANK = " \t"
_ENDS_WORD = " \t\n;&|<>()"
_LITERAL_DOLLAR = " \t\n;&|/.,)"
_NO_HISTORY = " \t\n=();&|<>\"'"
_RESERVED = frozenset(
    "if then else elif fi do done case esac while until for select function coproc { } [[ ]]".split()  # noqa: SIM905
)

Expansion = Literal["variable", "tilde", "glob", "brace", "history"]


class CommandError(ValueError):
    """A command line that cannot be parsed. The message names the problem, its position, and what to write instead."""


class Word(msgspec.Struct, frozen=True):
    """One word.

    ``text`` is the word without its quotes, ``raw`` the original text, and ``expansions`` are the expansions that a
    shell would apply. ``pattern`` is the text of a glob, with quoted wildcards written as ``[*]``.
    """

    text: str
    raw: str = ""
    at: int = 0
    expansions: frozenset[Expansion] = frozenset()
    pattern: str = ""


class Assignment(msgspec.Struct, frozen=True):
    """``NAME=value`` before a command."""

    name: str
    value: Word
    added: bool = False


class Redirect(msgspec.Struct, frozen=True):
    """A redirect of a descriptor to a file, or with ``>&`` to another descriptor."""

    operator: Literal["<", ">", ">>", ">&"]
    descriptor: int
    target: Word


class ShellCommand(msgspec.Struct, frozen=True):
    """A simple command. It may have no words if it has redirects or assignments."""

    words: tuple[Word, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    redirects: tuple[Redirect, ...] = ()


class Pipeline(msgspec.Struct, frozen=True):
    """Commands connected by pipes. ``negated`` says that a ``!`` precedes them."""

    commands: tuple[ShellCommand, ...]
    negated: bool = False


class CommandLine(msgspec.Struct, frozen=True):
    """Pipelines, and the operator after each: ``&&``, ``||``, ``;`` or ``&``; ``""`` for none after the last."""

    pipelines: tuple[Pipeline, ...]
    operators: tuple[Literal["&&", "||", ";", "&", ""], ...]


def parse_command(text: str) -> CommandLine:
    """Parse a command line as ``sh`` and ``bash`` do.

    Compound commands, functions, here-documents, nested commands (``$(...)``, backticks, ``<(...)``) and special forms
    of text (``${...}``, ``$'...'``) are not supported.

    Raises:
        CommandError: the command line has something that is not supported.
    """
    if len(text) > MAX_LENGTH:
        raise CommandError(f"the command has {len(text)} characters; at most {MAX_LENGTH} are allowed")
    check_characters(text)
    return _Parser(text).line()


def check_characters(text: str) -> None:
    """Check that a text has no characters that cannot be run, or would be displayed as something else.

    Raises:
        CommandError: the text has such a character.
    """
    if found := _NEVER.search(text):
        raise _error(f"the character U+{ord(found[0]):04X}", found.start(), "leave it out")


def _error(what: str, at: int, instead: str = "") -> CommandError:
    return CommandError(f"{what} at position {at + 1} is not supported" + (f": {instead}" if instead else ""))


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def line(self) -> CommandLine:
        pipelines: list[Pipeline] = []
        operators: list[Literal["&&", "||", ";", "&", ""]] = []
        self._skip(lines=True)
        while self.at < len(self.text):
            pipelines.append(self._pipeline())
            operator = self._operator()
            operators.append(operator)
            self._skip(lines=True)
            if operator in ("&&", "||") and self.at >= len(self.text):
                raise CommandError(f"there is no command after {operator}")
        if not pipelines:
            raise CommandError("the command is empty")
        if operators[-1] == ";":
            operators[-1] = ""
        return CommandLine(tuple(pipelines), tuple(operators))

    def _peek(self, ahead: int = 0) -> str:
        return self.text[self.at + ahead : self.at + ahead + 1]

    def _skip(self, lines: bool = False) -> None:
        """Skip blanks, comments, continued lines and, with ``lines``, ends of lines."""
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if char in _BLANK or (lines and char == "\n"):
                self.at += 1
            elif char == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif char == "\\" and self._peek(1) == "\n" and text[self.at - 1 : self.at] in ("", *_BLANK, "\n"):
                self.at += 2
            else:
                break

    def _operator(self) -> Literal["&&", "||", ";", "&", ""]:
        two, one = self.text[self.at : self.at + 2], self._peek()
        if two in ("&&", "||"):
            self.at += 2
            return two  # type: ignore[return-value]
        if one in (";", "&", "\n"):
            self.at += 1
            return "&" if one == "&" else ";"
        return ""

    def _pipeline(self) -> Pipeline:
        negated = self._peek() == "!" and self._peek(1) in _BLANK and self._peek(1) != ""
        if negated:
            self.at += 1
            self._skip()
        commands = [self._command()]
        while self._peek() == "|" and self._peek(1) != "|":
            if self._peek(1) == "&":
                raise _error("'|&'", self.at, "write 2>&1 |")
            self.at += 1
            self._skip(lines=True)
            commands.append(self._command())
        return Pipeline(tuple(commands), negated)

    def _command(self) -> ShellCommand:
        words: list[Word] = []
        assignments: list[Assignment] = []
        redirects: list[Redirect] = []
        start = self.at
        while True:
            self._skip()
            char = self._peek()
            if not char or char in "\n;|":
                break
            if char == "&":
                if self._peek(1) == ">":
                    raise _error("'&>'", self.at, "write > FILE 2>&1")
                break
            if char in "()":
                raise _error(f"{char!r}", self.at, "write simple commands, and quote brackets in arguments")
            number = _DESCRIPTOR.match(self.text, self.at)
            if number or char in "<>":
                redirects.append(self._redirect(number[0] if number else ""))
                continue
            word = self._word()
            if not words and not assignments and word.raw in _RESERVED:
                raise _error(f"{word.raw!r}", word.at, "write simple commands, without loops, conditions and functions")
            if not words and not assignments and word.raw == "!":
                raise _error("'!'", word.at)
            found = None if words else _ASSIGNMENT.match(word.raw)
            if found:
                value = msgspec.structs.replace(word, text=word.text[found.end() :], raw=word.raw[found.end() :])
                assignments.append(Assignment(found[1], value, bool(found[2])))
            else:
                words.append(word)
        if not (words or assignments or redirects):
            if not self._peek():
                raise CommandError("a command is missing at the end")
            raise _error(f"{self._peek()!r} where a command should be", start)
        return ShellCommand(tuple(words), tuple(assignments), tuple(redirects))

    def _redirect(self, number: str) -> Redirect:
        start = self.at
        self.at += len(number)
        sign, after = self._peek(), self._peek(1)
        if after == "(":
            raise _error(f"'{sign}(...)'", start, "run that command separately first")
        if sign + after == "<<":
            raise _error("'<<'", start, "pipe the text in: printf '...' | COMMAND")
        if sign + after in ("<>", "<&"):
            raise _error(repr(sign + after), start, "use <, > or >>")
        operator = sign + after if sign == ">" and after in (">", "&", "|") else sign
        self.at += len(operator)
        if operator == ">|":
            operator = ">"
        descriptor = int(number[-6:]) if number else 0 if sign == "<" else 1
        self._skip()
        if self._peek() in ("", *"\n;&|<>()"):
            raise _error(f"{operator!r} without a file", start)
        target = self._word()
        wrong = descriptor != 0 if sign == "<" else descriptor not in (1, 2)
        if wrong or (operator == ">&" and target.raw not in ("1", "2")):
            raise _error(f"{self.text[start : self.at]!r:.60}", start, "use <, >, >>, 2>, 2>&1 and >&2")
        return Redirect(operator, descriptor, target)  # type: ignore[arg-type]

    def _word(self) -> Word:
        text, start = self.text, self.at
        builder = _WordBuilder()
        while self.at < len(text):
            char = text[self.at]
            if plain := _PLAIN.match(text, self.at):
                builder.plain(plain[0])
                self.at = plain.end()
            elif char in _ENDS_WORD:
                break
            elif char == "'":
                end = text.find("'", self.at + 1)
                if end < 0:
                    raise _error("a ' without a second one", self.at, "close the quote")
                builder.quoted(text[self.at + 1 : end])
                self.at = end + 1
            elif char == '"':
                self._double(builder)
            elif char == "\\":
                follows = self._peek(1)
                if follows in ("", "\n"):
                    raise _error("a \\ at the end of a word", self.at, "put a space before it")
                self._check_printable(follows)
                builder.quoted(follows)
                self.at += 2
            elif char == "$":
                self._dollar(builder, _LITERAL_DOLLAR)
            elif char == "`":
                raise _error("'`'", self.at, "run that command separately first")
            else:
                self._check_printable(char)
                if char == "!" and self._peek(1) not in ("", *_NO_HISTORY):
                    builder.expansions.add("history")
                builder.special(char)
                self.at += 1
        raw = text[start : self.at]
        if self._peek() in ("<", ">") and raw.startswith("{") and raw.endswith("}"):
            raise _error(f"{raw + self._peek()!r:.60}", start, "use <, >, >>, 2>, 2>&1 and >&2")
        return builder.word(raw, start)

    def _double(self, builder: _WordBuilder) -> None:
        text, start = self.text, self.at
        self.at += 1
        builder.quoted("")
        while (char := self._peek()) != '"':
            if not char:
                raise _error('a " without a second one', start, "close the quote")
            if char == "$":
                self._dollar(builder, _LITERAL_DOLLAR + '"')
            elif char == "`":
                raise _error("'`'", self.at, "run that command separately first")
            elif char == "\\" and self._peek(1) in ("$", "`", '"', "\\", "\n"):
                builder.quoted(self._peek(1).replace("\n", ""))
                self.at += 2
            else:
                if char == "!" and self._peek(1) not in ("", *_NO_HISTORY):
                    builder.expansions.add("history")
                end = self.at + 1
                while text[end : end + 1] not in ("", "$", "`", '"', "\\", "!"):
                    end += 1
                builder.quoted(text[self.at : end])
                self.at = end
        self.at += 1

    def _dollar(self, builder: _WordBuilder, literal: str) -> None:
        follows = self._peek(1)
        if follows in ("(", "{"):
            instead = "run that command separately first" if follows == "(" else "write the value itself"
            raise _error(f"'${follows}'", self.at, instead)
        if follows in ("'", '"') and follows not in literal:
            raise _error(f"'${follows}'", self.at, "use plain quotes")
        if follows and follows not in literal:
            builder.expansions.add("variable")
        builder.quoted("$")
        self.at += 1

    def _check_printable(self, char: str) -> None:
        if not char.isprintable() and char not in _BLANK:
            raise _error(f"the character U+{ord(char):04X}", self.at, "put it in quotes, or leave it out")


class _WordBuilder:
    """Builds one word."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.pattern: list[str] = []
        self.expansions: set[Expansion] = set()
        self._brace = self._bracket = self._quoted_in_bracket = self._any_quoted = False
        self._last = ""

    def plain(self, piece: str) -> None:
        """Add unquoted characters. Only ``]``, ``,`` and ``..`` among them may be special."""
        if self._bracket and "]" in piece:
            self.expansions.add("glob")
        if self._brace and ("," in piece or ".." in piece or (self._last == "." and piece[0] == ".")):
            self.expansions.add("brace")
        self._add(piece, piece)

    def special(self, char: str) -> None:
        """Add one unquoted character that may be special."""
        if char in "*?":
            self.expansions.add("glob")
        elif char == "[":
            self._bracket = True
        elif char == "{":
            self._brace = True
        elif char == "~" and ((not self.text and not self._any_quoted) or self._last in ("=", ":")):
            self.expansions.add("tilde")
        self._add(char, char)

    def quoted(self, piece: str) -> None:
        """Add characters that stand for themselves."""
        self._any_quoted = True
        self._quoted_in_bracket |= self._bracket
        self._add(piece, re.sub(r"([*?[])", r"[\1]", piece))
        self._last = ""

    def _add(self, piece: str, pattern: str) -> None:
        self.text.append(piece)
        self.pattern.append(pattern)
        self._last = piece[-1:]

    def word(self, raw: str, at: int) -> Word:
        if self._quoted_in_bracket and "glob" in self.expansions:
            raise _error(f"{raw!r:.60}", at, "put the whole word in quotes")
        pattern = "".join(self.pattern) if "glob" in self.expansions else ""
        return Word("".join(self.text), raw, at, frozenset(self.expansions), pattern)
