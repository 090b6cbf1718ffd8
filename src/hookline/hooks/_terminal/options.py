"""Parse the options of a command, allowing only those of the allowlist."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ..._toolbox.command_line import Word
from .allowlist import Program

_NUMBER = re.compile(r"[-+]?[0-9]+[A-Za-z]{0,3}")
_MARKS = ":/?!"


class BlockedError(Exception):
    """The command must not run.

    Args:
        reason: the rule, in a few words.
        message: what is not allowed, and what to do instead; shown to the model.
        final: whether the command is blocked even where unknown commands need approval.
    """

    def __init__(self, reason: str, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.reason, self.message, self.final = reason, message, final


class ParsedOptions(msgspec.Struct, frozen=True):
    """The parsed arguments of a program: operands, options, option values, and the values that are paths."""

    operands: list[Word]
    options: set[str]
    values: list[tuple[str, Word]]
    paths: list[Word]

    def values_of(self, *options: str) -> list[Word]:
        """Return the values of these options."""
        return [word for option, word in self.values if option in options]


def parse_options(
    name: str, program: Program, args: Sequence[Word], confined: bool, permuted: bool = True
) -> ParsedOptions:
    """Parse options as getopt does.

    Args:
        name: the name of the program, for error messages.
        program: its allowed options.
        args: all words after the name.
        confined: whether the command must stay in a folder.
        permuted: whether options may follow operands.

    Raises:
        BlockedError: an option is not on the allowlist, or is ambiguous.
    """
    return _OptionParser(name, program, confined).read(args, permuted)


class _OptionParser:
    def __init__(self, name: str, program: Program, confined: bool) -> None:
        self.name, self.confined = name, confined
        self.short = _table(re.findall(rf".[{_MARKS}]?", program.short))
        self.long = _table(program.long.split()) | {"help": "", "version": ""}
        self.parsed = ParsedOptions([], set(), [], [])

    def read(self, args: Sequence[Word], permuted: bool) -> ParsedOptions:
        left = list(reversed(args))
        while left:
            word = left.pop()
            if word.text == "--":
                self.parsed.operands.extend(reversed(left))
                break
            if not word.text.startswith("-") or word.text == "-":
                self.parsed.operands.append(word)
                if not permuted:
                    self.parsed.operands.extend(reversed(left))
                    break
            elif word.text.startswith("--"):
                self._long(word, left)
            else:
                self._short(word, left)
        return self.parsed

    def _long(self, word: Word, left: list[Word]) -> None:
        option, sign, value = word.text[2:].partition("=")
        kind = self.long.get(option)
        if kind is None or (sign and kind in ("", "!")):
            raise self.blocked(f"--{option}")
        self._take(option, kind, f"--{option}")
        if sign:
            self._value(option, kind, msgspec.structs.replace(word, text=value))
        elif kind in (":", "/"):
            self._value(option, kind, self._next(left, f"--{option}"))

    def _short(self, word: Word, left: list[Word]) -> None:
        letters = word.text[1:]
        if "#" in self.short and letters.isascii() and letters.isdecimal():
            return
        for at, letter in enumerate(letters):
            kind = self.short.get(letter) if letter != "#" else None
            if kind is None:
                raise self.blocked(f"-{letter}")
            self._take(letter, kind, f"-{letter}")
            attached = letters[at + 1 :]
            if kind in (":", "/"):
                value = msgspec.structs.replace(word, text=attached) if attached else self._next(left, f"-{letter}")
                self._value(letter, kind, value)
            if kind in (":", "/", "?"):
                break

    def _take(self, option: str, kind: str, shown: str) -> None:
        if kind == "!" and self.confined:
            raise self.blocked(shown)
        self.parsed.options.add(option)

    def _next(self, left: list[Word], shown: str) -> Word:
        if not left:
            raise BlockedError("option without a value", f"{self.name} {shown} needs a value after it.")
        value = left.pop()
        if value.text.startswith("-") and value.text != "-" and not _NUMBER.fullmatch(value.text):
            message = f"It is not clear whether {value.text!r:.60} belongs to {shown}. Write them as one word."
            raise BlockedError("not clear", message)
        return value

    def _value(self, option: str, kind: str, value: Word) -> None:
        self.parsed.values.append((option, value))
        if kind == "/":
            self.parsed.paths.append(value)

    def blocked(self, shown: str) -> BlockedError:
        message = f"{self.name} {shown:.60} is not allowed. Use options that only read, written in full."
        return BlockedError(f"option: {self.name} {shown:.60}", message)


def _table(options: Sequence[str]) -> dict[str, str]:
    return {
        option[:-1] if option[-1] in _MARKS and len(option) > 1 else option: option[-1] if option[-1] in _MARKS else ""
        for option in options
    }
