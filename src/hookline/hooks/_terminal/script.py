"""Find the commands in a shell script: in lists, loops, functions, ``$(...)`` and here-documents.

The developer profile applies its rules to these commands. Commands whose words only appear when the script runs, such
as ``eval "$X"``, are not found, but the sandbox confines them too. So this is a scanner and not a parser of the whole
language: libraries for that have compiled grammars or unsuitable licences.
"""

from __future__ import annotations

import os
import re
from itertools import takewhile
from typing import NamedTuple

import msgspec

from ..._toolbox.command_line import MAX_LENGTH, CommandError, Expansion, Word, check_characters

SHELLS = frozenset({"ash", "bash", "dash", "ksh", "mksh", "sh", "zsh"})
"""Programs that run a script."""

_INTERPRETER = re.compile(r"(python|pypy|perl|ruby|php)[0-9.]*|node|nodejs|deno|bun|lua|Rscript")
_MAX_DEPTH = 25
_KEYWORDS = frozenset({"if", "then", "else", "elif", "fi", "while", "until", "do", "done", "coproc", "!", "{", "}"})
_WORD_LISTS = frozenset({"for", "select", "case"})  # words follow these keywords, not a command
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_REDIRECT = re.compile(r"(?:[0-9]+(?=[<>]))?(<<<|<<-?|<>|<&|<(?!\()|>>|>&|>\||>(?!\()|&>)")
_PLAIN = re.compile(r"[^\s;&|<>()'\"\\$`*?\[{]+")
_BRACES = re.compile(r"\{[^\s{}'\"]*\}")
_PARAMETER = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_TERM = r"[^()'\"`\\;\n$]|\$(?!\()"
_ARITHMETIC = re.compile(rf"\$\(\((?:{_TERM}|\((?:{_TERM})*\))*\)\)")
_SPECIAL = re.compile(r"([*?[])")


class Script(msgspec.Struct):
    """The commands in a script, the files that its redirects write and read, and code that interpreters get as input.

    A part of a word that is only known when the script runs is a ``*`` in :attr:`Word.pattern`. ``fed`` has the places
    of commands whose input is a file or a text, and ``piped`` the places of those that read the output of another one,
    with the place of that one.
    """

    commands: list[tuple[Word, ...]] = []
    written: list[Word] = []
    read: list[Word] = []
    code: list[str] = []
    fed: set[int] = set()
    piped: dict[int, int] = {}


class _HereDocument(NamedTuple):
    end: str
    tabs: bool
    quoted: bool
    command: list[Word]


def is_interpreter(word: Word) -> bool:
    """Return whether a word is a program that runs code from its arguments or its input, and is not a shell."""
    return _INTERPRETER.fullmatch(os.path.basename(word.text)) is not None


def find_commands(text: str) -> Script:
    """Find the commands in a script.

    Raises:
        CommandError: the script is not complete, is nested too deeply, or has something that is not supported.
    """
    if len(text) > MAX_LENGTH:
        raise CommandError(f"the command has {len(text)} characters; at most {MAX_LENGTH} are allowed")
    check_characters(text)
    found = Script()
    _Scanner(text, found, 0).commands("")
    return found


class _Scanner:
    def __init__(self, text: str, found: Script, depth: int) -> None:
        self.text, self.at, self.found, self.depth = text, 0, found, depth
        self._documents: list[_HereDocument] = []
        self._fed: list[list[Word]] = []

    def commands(self, end: str) -> None:
        """Scan commands until the bracket that ends them, or the end of the text."""
        self._enter()
        words: list[Word] = []
        cases = 0
        source: int | None = None  # the command at the other end of a pipe
        while self.at < len(self.text):
            char = self.text[self.at]
            redirect = _REDIRECT.match(self.text, self.at)
            if char in " \t" or self.text.startswith("\\\n", self.at):
                self.at += 1 if char in " \t" else 2
            elif char == "#":
                line = self.text.find("\n", self.at)
                self.at = len(self.text) if line < 0 else line
            elif redirect:
                self._redirect(redirect, words)
            elif char in ";&|\n":
                is_pipe = char == "|" and self.text[self.at - 1 : self.at + 2].count("|") == 1
                words = self._finish(words, source)
                source = len(self.found.commands) - 1 if is_pipe else None
                self.at += 1
                if char == "\n":
                    self._read_documents()
            elif char == "(":
                words = self._bracket(words)
            elif char == ")":
                self.at += 1
                if cases:
                    words = []  # a pattern in case ... esac
                    continue
                if end != ")":
                    raise CommandError("there is a ')' without a '('")
                self._finish(words, source)
                self.depth -= 1
                return
            else:
                word = self._word()
                if not words and word.raw in _KEYWORDS:
                    continue
                if not words and word.raw == "function":
                    self._skip_blanks()
                    self._word()
                    continue
                if word.raw == "do" and words[0].raw in _WORD_LISTS:
                    words = []
                    continue
                cases += (word.raw == "case" and not words) - (word.raw == "esac" and not words)
                if words or not _ASSIGNMENT.match(word.raw):
                    words += [word] * (word.raw.count(",") + 1 if "brace" in word.expansions else 1)
        if end:
            raise CommandError(f"a {end!r} is missing")
        self._finish(words, source)
        self.depth -= 1

    def _enter(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise CommandError(f"commands are nested more than {_MAX_DEPTH} deep: write simpler commands")

    def _finish(self, words: list[Word], source: int | None) -> list[Word]:
        if words and words[0].raw not in _WORD_LISTS and words[0].raw != "esac":
            number = len(self.found.commands)
            self.found.commands.append(tuple(words))
            if any(each is words for each in self._fed):
                self.found.fed.add(number)
            if source is not None:
                self.found.piped[number] = source
        return []

    def _bracket(self, words: list[Word]) -> list[Word]:
        """Scan a subshell, or the brackets of a function or array."""
        if self.text.startswith("((", self.at):
            raise CommandError(f"'((' at position {self.at + 1} is not supported: write $((...)), or a space between")
        self.at += 1
        self._skip_blanks()
        if words and self.text[self.at : self.at + 1] == ")":
            self.at += 1
            return []
        self.commands(")")
        return [] if words and words[0].raw == "case" else words  # brackets around a pattern of case

    def _skip_blanks(self) -> None:
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1

    def _redirect(self, found: re.Match[str], words: list[Word]) -> None:
        operator = found[1]
        if operator == "&>":
            raise CommandError("'&>' does not mean the same in all shells: write > FILE 2>&1")
        self.at = found.end()
        self._skip_blanks()
        target = self._word()
        if operator in ("<<", "<<-", "<<<") or (operator == "<" and not target.text.startswith(("/dev/", "/proc/"))):
            self._fed.append(words)
        if operator in ("<<", "<<-"):
            self._documents.append(_HereDocument(target.text, operator == "<<-", target.raw != target.text, words))
        elif operator == "<<<":
            if _runs_shell(words):
                _Scanner(target.text, self.found, self.depth).commands("")
            elif any(is_interpreter(word) for word in words):
                self.found.code.append(target.text)
        elif ">" in operator and not (operator == ">&" and re.fullmatch("[0-9]+|-", target.text)):
            self.found.written.append(target)
        elif operator in ("<", "<>"):
            self.found.read.append(target)

    def _read_documents(self) -> None:
        """Read the here-documents that begin after this line."""
        for document in self._documents:
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self.text[self.at : len(self.text) if end < 0 else end]
                self.at += len(line) + 1
                if (line.lstrip("\t") if document.tabs else line) == document.end:
                    break
                if line.endswith("\\") and not document.quoted:
                    raise CommandError(f"a \\ at the end of a line is not supported here: write <<'{document.end}'")
                lines.append(line)
            body = "\n".join(lines)
            if not document.quoted:
                _Scanner(body, self.found, self.depth).quoted("")
            if _runs_shell(document.command):
                _Scanner(body, self.found, self.depth).commands("")
            elif any(is_interpreter(word) for word in document.command):
                self.found.code.append(body)
        self._documents = []

    def _word(self) -> Word:
        text, start = self.text, self.at
        pieces: list[tuple[str, str]] = []  # the text, and the pattern that it stands for
        while self.at < len(text):
            char = text[self.at]
            if plain := _PLAIN.match(text, self.at):
                pieces.append((plain[0], plain[0]))
                self.at = plain.end()
            elif text[self.at : self.at + 2] in ("<(", ">("):
                self.at += 2
                self.commands(")")
                pieces.append(("", "*"))
            elif char in " \t\n;&|<>()":
                break
            elif char == "'":
                end = text.find("'", self.at + 1)
                if end < 0:
                    raise CommandError("a ' is missing: close the quote")
                pieces.append(_literal(text[self.at + 1 : end]))
                self.at = end + 1
            elif char == '"':
                self.at += 1
                pieces += self.quoted('"')
            elif char == "\\":
                pieces.append(_literal(text[self.at + 1 : self.at + 2].replace("\n", "")))
                self.at += 2
            elif text.startswith('$"', self.at):
                self.at += 1
            elif char in "$`":
                pieces.append(self._expansion())
            elif char == "{" and (braces := _BRACES.match(text, self.at)) and re.search(r",|\.\.", braces[0]):
                pieces.append((braces[0], "*"))
                self.at = braces.end()
            else:
                pieces.append((char, char))
                self.at += 1
        if self.at == start:
            raise CommandError(f"a word is missing at position {start + 1}")
        plain_text = "".join(piece for piece, _ in pieces)
        pattern = "".join(pattern for _, pattern in takewhile(lambda piece: piece != ("[", "["), pieces))
        pattern += "*" if ("[", "[") in pieces else ""  # a set, which may have quotes, and what follows
        raw = text[start : self.at].replace("\\\n", "")
        if raw in ("[", "[[") or pattern == _SPECIAL.sub(r"[\1]", plain_text):
            return Word(plain_text, raw, start)
        kind: Expansion = "brace" if any(piece[:1] == "{" and other == "*" for piece, other in pieces) else "variable"
        return Word(plain_text, raw, start, frozenset({kind}), pattern)

    def quoted(self, end: str) -> list[tuple[str, str]]:
        """Scan text in double quotes, or of a here-document, until the quote that ends it."""
        pieces = [("", "")]
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == end:
                self.at += 1
                return pieces
            if char in "$`":
                pieces.append(self._expansion(in_quotes=True))
            elif char == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                pieces.append(_literal("" if following == "\n" else following if following in '$`"\\' else "\\"))
                self.at += 2 if following and following in '$`"\\\n' else 1
            else:
                pieces.append(_literal(char))
                self.at += 1
        if end:
            raise CommandError(f"a {end} is missing: close the quote")
        return pieces

    def _expansion(self, in_quotes: bool = False) -> tuple[str, str]:
        """Scan ``$name``, ``${...}``, ``$(...)``, ``$((...))``, ``$'...'`` or backticks."""
        text = self.text
        if text[self.at] == "`":
            found = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL).match(text, self.at)
            if found is None:
                raise CommandError("a ` is missing")
            self.at = found.end()
            _Scanner(re.sub(r"\\([`\\$])", r"\1", found[1]), self.found, self.depth).commands("")
            return found[0], "*"
        if found := _PARAMETER.match(text, self.at) or _ARITHMETIC.match(text, self.at):
            self.at = found.end()
            return found[0], "*"
        start = self.at
        following = text[self.at + 1 : self.at + 2]
        if text.startswith("$((", self.at):
            raise CommandError(f"the '$((' at position {start + 1} is not understood: write simple arithmetic")
        if following == "(":
            self.at += 2
            self.commands(")")
        elif following == "{":
            self._parameter()
        elif following == "'" and not in_quotes:
            found = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL).match(text, self.at)
            if found is None:
                raise CommandError("a ' is missing: close the quote")
            self.at = found.end()
        else:
            self.at += 1
            return "$", "$"
        return text[start : self.at], "*"

    def _parameter(self) -> None:
        """Scan ``${...}``."""
        self._enter()
        self.at += 2
        while self.text[self.at : self.at + 1] != "}":
            char = self.text[self.at : self.at + 1]
            if not char:
                raise CommandError("a '}' is missing")
            if char == "'":
                raise CommandError("a ' in ${...} is not supported: write it without quotes")
            if char in "$`":
                self._expansion()
            elif char == '"':
                self.at += 1
                self.quoted('"')
            else:
                self.at += 2 if char == "\\" else 1
        self.at += 1
        self.depth -= 1


def _runs_shell(words: list[Word]) -> bool:
    return any(os.path.basename(word.text) in SHELLS for word in words)


def _literal(text: str) -> tuple[str, str]:
    """Return quoted text, with a pattern in which its wildcards are escaped."""
    return text, _SPECIAL.sub(r"[\1]", text)
