"""The options of a command, read by the list of those that its program may have."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ..._toolbox.command_line import Word
from .allowlist import Program

_NUMBER = re.compile(r"[-+]?[0-9]+[A-Za-z]{0,3}")
_MARKS = ":/?!"


class Refused(Exception):
    """A command that may not run.

    Args:
        reason: the rule, in a few words.
        message: what is not allowed, and what to do instead.
        final: whether even a person is not asked.
    """

    def __init__(self, reason: str, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.reason, self.message, self.final = reason, message, final


class Given(msgspec.Struct, frozen=True):
    """What a program was given: its operands, its options, and the values and paths among those."""

    operands: list[Word]
    options: set[str]
    values: list[tuple[str, Word]]
    paths: list[Word]

    def all_of(self, *options: str) -> list[Word]:
        """The values of these options."""
        return [word for option, word in self.values if option in options]


def read_options(name: str, program: Program, args: Sequence[Word], bound: bool, permuted: bool = True) -> Given:
    """Take the options apart as getopt does.

    Args:
        name: the program's name, for the messages.
        program: its options.
        args: all that stands after the name.
        bound: whether there is a folder to stay in.
        permuted: whether options may stand after operands.

    Raises:
        Refused: an option that is not on the list, or is not clear.
    """
    return _Options(name, program, bound).read(args, permuted)


class _Options:
    def __init__(self, name: str, program: Program, bound: bool) -> None:
        self.name, self.bound = name, bound
        self.short = _table(re.findall(rf".[{_MARKS}]?", program.short))
        self.long = _table(program.long.split()) | {"help": "", "version": ""}
        self.given = Given([], set(), [], [])

    def read(self, args: Sequence[Word], permuted: bool) -> Given:
        left = list(reversed(args))
        while left:
            word = left.pop()
            if word.text == "--":
                self.given.operands.extend(reversed(left))
                break
            if not word.text.startswith("-") or word.text == "-":
                self.given.operands.append(word)
                if not permuted:
                    self.given.operands.extend(reversed(left))
                    break
            elif word.text.startswith("--"):
                self._long(word, left)
            else:
                self._short(word, left)
        return self.given

    def _long(self, word: Word, left: list[Word]) -> None:
        option, sign, value = word.text[2:].partition("=")
        kind = self.long.get(option)
        if kind is None or (sign and kind in ("", "!")):
            raise self.refused(f"--{option}")
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
                raise self.refused(f"-{letter}")
            self._take(letter, kind, f"-{letter}")
            attached = letters[at + 1 :]
            if kind in (":", "/"):
                value = msgspec.structs.replace(word, text=attached) if attached else self._next(left, f"-{letter}")
                self._value(letter, kind, value)
            if kind in (":", "/", "?"):
                break

    def _take(self, option: str, kind: str, shown: str) -> None:
        if kind == "!" and self.bound:
            raise self.refused(shown)
        self.given.options.add(option)

    def _next(self, left: list[Word], shown: str) -> Word:
        if not left:
            raise Refused("option without a value", f"{self.name} {shown} needs a value after it.")
        value = left.pop()
        if value.text.startswith("-") and value.text != "-" and not _NUMBER.fullmatch(value.text):
            message = f"It is not clear whether {value.text!r:.60} belongs to {shown}. Write them as one word."
            raise Refused("not clear", message)
        return value

    def _value(self, option: str, kind: str, value: Word) -> None:
        self.given.values.append((option, value))
        if kind == "/":
            self.given.paths.append(value)

    def refused(self, shown: str) -> Refused:
        message = f"{self.name} {shown:.60} is not allowed. Use options that only read, written in full."
        return Refused(f"option: {self.name} {shown:.60}", message)


def _table(options: Sequence[str]) -> dict[str, str]:
    return {
        option[:-1] if option[-1] in _MARKS and len(option) > 1 else option: option[-1] if option[-1] in _MARKS else ""
        for option in options
    }
