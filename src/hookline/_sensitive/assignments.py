"""Secrets that are found by their context: after the name of a password or key, in a cookie, or in a command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, pairwise

from .lazy_patterns import lazily
from .numbers import DIGIT, positions
from .words import IS, IS_WITHOUT_SPACES, KEYS, PASSWORDS, SENTENCE, STATES, VARIABLES

CJK = r"⺀-\U0010ffff"
"""Scripts without spaces. Values end before them, so that streamed text can be cut there."""


def lower(text: str) -> str:
    """Return the text in lower case, with the same length."""
    low = text.lower()
    if text.isascii():
        return low
    low = low.replace("\u03c2", "\u03c3")  # the two forms of the Greek sigma
    return low if len(low) == len(text) else "".join(sign.lower() if len(sign.lower()) == 1 else sign for sign in text)


_PASSWORD_WORDS = frozenset(map(lower, chain.from_iterable(PASSWORDS.values())))
_WORDS = sorted({*_PASSWORD_WORDS, *chain.from_iterable(KEYS.values())}, key=lambda word: (-len(word), word))
_ENGLISH = ("pass", "pwd", "secret", "token", "key", "authorization")


def _stems(words: Iterable[str]) -> Iterator[str]:
    """Yield the beginnings of words, such as ``clave`` for all names that begin with it: each costs a search."""
    found: list[str] = []
    for word in sorted(words):
        first = re.match(r"\w{5,}", word)
        stem = first[0] if first else word
        if not stem.startswith(("pass", *found)):
            found.append(stem)
            yield stem


_STEMS = tuple(_stems(_WORDS))
_ASCII_STEMS = tuple(filter(str.isascii, _STEMS))


@cache
def _scripts() -> Sequence[tuple[re.Pattern[str], Sequence[str]]]:
    """Return words with other letters, by their script: accented Latin, Greek to Thai, East Asian."""
    scripts = map(re.compile, ("[\u00df-\u024f\u1ea0-\u1eff]", "[\u0370-\u1dff]", "[\u3040-\ud7ff]"))
    return [(script, [stem for stem in _STEMS if script.search(stem)]) for script in scripts]


_FIRST_JOINED = 0x2E80  # from here on, words are written without spaces
_SHORT_WORD = 6  # shorter words are also inside others: the Spanish "clave" in "enclave"

_SORT_OF_KEY = (
    r"(?:api|access|secret|private|auth|encryption|signing|master|account|storage|subscription|license|service|session|"
    r"client|shared|webhook|admin|app)[_\- ]?"
)
_NAME = (
    r"pass(?:words?|wd|phrase|code|wort|ord)|pwd|pass(?=[=:]|\Z)|secret(?:[_-]?(?:access)?[_-]?key)?|token|authorization|"
    rf"{_SORT_OF_KEY}key|" + "|".join(map(re.escape, _WORDS))
)
_SEPARATOR = rf"=>|:=|={{1,2}}|:|->|\b(?:{'|'.join(IS)})\b(?: now|:)?|{'|'.join(IS_WITHOUT_SPACES)}"
_BETWEEN = rf"\\?[\"'`\]]{{0,2}}[ \t]{{0,3}}(?P<sep>{_SEPARATOR})[ \t]{{0,3}}\\?"
_SCHEME = r"(?:(?:basic|bearer|digest|token)[ \t]{1,3})?"
_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "„": "“", "«": "»", "「": "」"}
_LONGEST = 200
_IN_QUOTES = "|".join(
    (
        *(rf"(?<=\\){sign}[^{sign}\\\n]{{4,{_LONGEST}}}+" for sign in "\"'`"),  # in JSON within a text: \"value\"
        *(rf"{begin}(?:[^{end}\\\n]|\\.){{4,{_LONGEST}}}+" for begin, end in _QUOTES.items()),
    )
)
_BARE = rf"[^\s\"'`,;&<>(){{}}\[\]{CJK}]"
_VALUE = rf"(?:(?P<quoted>{_IN_QUOTES})|(?P<bare>{_BARE}{{4,{_LONGEST}}}+))"
_ASSIGNED = lazily(rf"(?i)(?P<name>{_NAME}){_BETWEEN}{_SCHEME}{_VALUE}")
_OPTION = lazily(rf"(?i)(?P<name>{_NAME})(?P<sep>[ \t]{{1,3}})(?![-|]){_VALUE}")
_OPTION_BEFORE = re.compile(r"(?<![\w-])--?[\w-]{0,30}\Z")
_REST_OF_BARE = lazily(rf"{_BARE}+")
_FIELD = lazily(rf"(?i)(?P<name>{_NAME}|cookie)\Z")
_KEY_BEFORE = re.compile(rf"(?i){_SORT_OF_KEY}\Z")
_NO_VALUE = lazily(
    r"(?i)(?:[*x._-]+|<.*|\$\{.*|\$\(.*|\$[a-z_]+|%\w+%|%[sd(].*|[{(\[].*|\.{0,2}/.*|~/.*|[\w.+-]+://.*|your.*|"
    r"my[_-]?(?:passw|secret|token|key|api).*|change[_-]?(?:me|it).*|"
    r"none|null|nil|true|false|undefined|redacted|hidden|(?:example|sample|dummy|placeholder)\w*|todo|tbd|"
    r"string|str|text|bytes|int|optional|required|pass(?:word|wd)?s?|pass(?:word|wd)?[_-].*|pwd|secret|token|bearer|basic|"
    r"(?:os|env|process|self|settings|config|secrets?|var|data|local|args|request|ctx)\.[a-z_].*|vault:.*)\Z"
)
_PHRASE = re.compile(r"(?i)(?:the|an?|this|some|any|my|enter|please|must|should|not|no|for|from|with|and|or|in|on)\b")
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z_$]*[0-9]{0,3}(?:[.-][A-Za-z_$]*[0-9]{0,3})*\Z")
_TYPE = re.compile(r"(?:[A-Z][a-z]+[0-9]*){2,}\Z")
_PIECES = re.compile("[A-Z]?[a-z]+|[A-Z]+")
_LINE_BEFORE = re.compile(r"(?:[ \t]*(?:[-*] |export |set )?[\"']?[\w.-]{0,40})\Z")
_PART_OF_A_QUERY = re.compile(r"[\w.-]*")
_ODD_SIGNS = frozenset("!@#$%^*?~+")

_COOKIE_HEADER = 16  # characters up to the first cookie, as in ``"cookie" : "``
_COOKIE = re.compile(r"(?i)cookie[\"']?[ \t]{0,3}[:=][ \t]{0,3}\\?[\"']?(?=[\w!#$%&*+.^|~-]{1,100}=)")
_PAIR = lazily(r"([\w!#$%&*+.^|~-]{1,100}+)=([^\s;,\"'`<>\\⺀-\U0010ffff]*+)(;[ \t]?)?", re.ASCII)
_PAIR_BEGUN = re.compile(r"[\w!#$%&*+.^|~-]{0,100}\Z", re.ASCII)

_LOGIN = (
    rf"(?:\"([^\"\n:$<>]{{1,100}}:[^\"\n]{{1,{_LONGEST}}})|'([^'\n:$<>]{{1,100}}:[^'\n]{{1,{_LONGEST}}})"
    rf"|([^\s:\"'`$<>{CJK}]{{1,100}}:(?!//)[^\s\"'`<>{CJK}]{{1,{_LONGEST}}}))"
)
_WORD = (
    rf"(?:\"([^\"\n]{{3,{_LONGEST}}})|'([^'\n]{{3,{_LONGEST}}})"
    rf"|([^\s\"'`<>|&;{CJK}-][^\s\"'`<>|&;{CJK}]{{2,{_LONGEST}}}))"
)
_CURL = rf"\s(?:-[A-Za-z]{{0,6}}[uU]|--(?:proxy-)?user)[ \t=]{{0,3}}{_LOGIN}"
_COMMANDS = {
    "curl": _CURL,
    "http": rf"\s(?:-a|--auth)[ \t=]{{0,3}}{_LOGIN}",
    "mysql": rf"\s-p{_WORD}",
    "mariadb": rf"\s-p{_WORD}",
    "sshpass": rf"\s-p[ \t]{{0,3}}{_WORD}",
    "redis-cli": rf"\s-a[ \t]{{1,3}}{_WORD}",
    "login": rf"\s-p[ \t]{{1,3}}{_WORD}",
    "ldapsearch": rf"\s-w[ \t]{{1,3}}{_WORD}",
    "unzip": rf"\s-P[ \t]{{0,3}}{_WORD}",
    "openssl": rf"\bpass:{_WORD}",
}
"""Commands, and the options that take a login or a password."""

_COMMAND_OPTIONS = {command: lazily(option) for command, option in _COMMANDS.items()}
_LONGEST_COMMAND = 400
_REST_OF_COMMAND = re.compile(r"[a-z-]{0,8}[ \t]")  # https, mysqldump
_END_OF_COMMAND = re.compile(r"(?<!\\)\n")
_OPEN_IN_QUOTES = "|".join(
    (
        *(rf"(?<=\\){sign}[^{sign}\\\n]{{0,{_LONGEST}}}+" for sign in "\"'`"),
        *(rf"{begin}(?:[^{end}\\\n]|\\.){{0,{_LONGEST}}}+" for begin, end in _QUOTES.items()),
    )
)
_OPEN_VALUE = lazily(rf"(?i)(?:{_NAME})(?:{_BETWEEN}{_SCHEME}|[ \t]{{1,3}})(?P<open>{_OPEN_IN_QUOTES})\\?\Z")
_OPEN_OPTION = re.compile(r"(?:\s--?[A-Za-z][A-Za-z-]{0,12}[ \t=]{0,3}|pass:)(\"[^\"\n]{0,300}|'[^'\n]{0,300})\Z")
_ANY_QUOTE = re.compile(f"[{''.join(_QUOTES)}]")
_LONGEST_OPEN = 2 * _LONGEST + 64


def assigned_in(text: str, low: str) -> Iterator[tuple[int, int]]:
    """Yield the values that follow the name of a password or key in a normalised text; ``low`` is in lower case."""
    for names in _names_in(low):
        done = 0
        for start in names:
            if start < done:  # inside the value before
                continue
            found = _ASSIGNED().match(text, start)
            if found is None and low[start - 1 : start] in ("-", "_"):
                option = _OPTION_BEFORE.search(text, max(0, start - 33), start)
                found = _OPTION().match(text, start) if option else None
            if found is not None and (span := _value(text, found)) is not None:
                if found["bare"] is not None and len(found["bare"]) == _LONGEST:
                    rest = _REST_OF_BARE().match(text, span[1])
                    span = span[0], rest.end() if rest else span[1]
                yield span
                done = span[1]


def _names_in(low: str) -> Iterator[Iterator[int]]:
    """Yield the starts of names of secrets: those of each word in order."""
    yield from (_english_names(low, word) for word in _ENGLISH if word in low)
    yield from (_other_names(low, stem) for stem in _ASCII_STEMS if stem in low)
    for script, stems in () if low.isascii() else _scripts():
        if script.search(low):
            yield from (_other_names(low, stem) for stem in stems if stem in low)


def _english_names(low: str, word: str) -> Iterator[int]:
    for at in positions(low, word):
        if word != "pass" and low[at + len(word) : at + len(word) + 1].isalpha():  # tokens, secretary, keyboard
            continue
        if word != "key":
            yield at
        elif head := _KEY_BEFORE.search(low, max(0, at - 16), at):
            yield head.start()


def _other_names(low: str, stem: str) -> Iterator[int]:
    is_short = len(stem) < _SHORT_WORD and ord(stem[0]) < _FIRST_JOINED
    return (at for at in positions(low, stem) if not (is_short and low[max(0, at - 1) : at].isalpha()))


@lru_cache(maxsize=1024)
def name_of_secret(field: str) -> str:
    """Return the kind of secret that a field of this name contains, such as ``"password"``; empty if it has none."""
    found = _FIELD().search(field[-100:])
    return lower(found["name"]) if found else ""


def may_name_a_secret(low: str) -> bool:
    """Whether a text of plain words in lower case may have a secret in an option, or after an English name."""
    return any(word in low for word in _ENGLISH) or any(command in low for command in _COMMANDS)


def is_secret(name: str, value: str) -> bool:
    """Whether the value of such a field is a secret, not a placeholder or a word."""
    if _is_password(name):
        return is_value(value)
    if name == "cookie":
        return "=" in value and is_value(value)
    return len(value) >= 8 and " " not in value and is_mixed(value) and is_value(value)


def is_value(value: str) -> bool:
    """Whether a text can be a secret, not a placeholder."""
    if len(value) < 4 or is_placeholder(value) or value.lower() in _PASSWORD_WORDS:
        return False
    return not _PHRASE.match(value) or (" " in value and not _is_sentence(value))


def is_placeholder(value: str) -> bool:
    """Whether a text stands for a value, such as ``$PASSWORD`` or ``<password>``."""
    return _NO_VALUE().match(value) is not None


def is_mixed(value: str) -> bool:
    """Whether a value has a digit, or mixes upper and lower case within a word."""
    return DIGIT.search(value) is not None or (value[1:] != value[1:].lower() and value != value.upper())


def _is_password(name: str) -> bool:
    return name.startswith(("pass", "pwd")) or name in _PASSWORD_WORDS


def _value(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    name = lower(found["name"])
    is_password = _is_password(name)
    if found["quoted"] is not None:
        value, start = found["quoted"][1:], found.start("quoted") + 1
        in_words = " " in value and found["sep"].strip() and name != "passphrase" and _is_sentence(value)
        return (start, start + len(value)) if not in_words and is_secret(name, value) else None
    value, start = found["bare"].rstrip(".!?:\\"), found.start("bare")
    after = text[found.end() : found.end() + 1]
    if not is_value(value) or after in ("(", "[", "{") or "://" in value:
        return None
    span, is_option = (start, start + len(value)), not found["sep"].strip()
    if is_option and (value.lower() in SENTENCE or value.lower() in STATES or (value.isupper() and value.isalpha())):
        return None
    if is_password and (is_option or _is_setting(text, found, value, after)):
        return span
    if name == "authorization" and len(value) >= 8 and is_mixed(value) and text[start - 1] in " \t":
        return span
    digits, has_letter = len(DIGIT.findall(value)), value.lower() != value.upper()
    in_code = digits < 4 and ("." in value or not is_password) and _IDENTIFIER.match(value) is not None
    in_code = in_code or (not is_password and _TYPE.match(value) is not None)
    if is_password:
        odd = digits or not _ODD_SIGNS.isdisjoint(value)
        return span if len(value) >= 5 and has_letter and odd and not in_code else None
    return span if len(value) >= 8 and digits and has_letter and not in_code else None


def _is_sentence(value: str) -> bool:
    """Whether a quoted text is a label or a message about a password, not a password of several words."""
    words = re.findall(r"[^\W\d_]+(?:'[a-z]+)?", value.lower())
    about = any(word in SENTENCE or "passw" in word or word in _PASSWORD_WORDS for word in words)
    return about or value.rstrip()[-1:] in (".", ":", "?", "…", ",") or not words


def _is_setting(text: str, found: re.Match[str], value: str, after: str) -> bool:
    """Whether this is ``password=value`` or a line of settings, and the value is not a variable of a program."""
    start, sep = found.start("name"), found["sep"]
    close = sep == "=" and found.start("bare") == found.end("sep")
    if close and (found["name"].isupper() or _in_a_query(text, start)):
        return True
    if value.lower() in STATES or _is_variable(value):
        return False
    line = text[max(text.rfind("\n", max(0, start - _LONGEST), start) + 1, start - _LONGEST, 0) : start]
    alone = _LINE_BEFORE.match(line) is not None
    if close:
        in_a_call = line.count("(") > line.count(")") or (alone and line[:1] in (" ", "\t"))
        return not (in_a_call and after in (",", ")", ""))
    return (
        alone and sep in ("=", ":") and found["name"] != "pwd" and after in ("", "\n", "\r") and value == value.lower()
    )


def _is_variable(value: str) -> bool:
    """Whether a value is a variable of a program, such as ``new_password`` or ``form.secret``."""
    if _IDENTIFIER.match(value) is None or DIGIT.search(value):
        return False
    return "." in value or any(piece.lower() in VARIABLES for piece in _PIECES.findall(value))


def _in_a_query(text: str, at: int) -> bool:
    head = text[max(0, at - 40) : at]
    sign = max(head.rfind("?"), head.rfind("&"))
    return sign >= 0 and _PART_OF_A_QUERY.fullmatch(head, sign + 1) is not None


def cookies_in(text: str, low: str) -> Iterator[tuple[int, int]]:
    """Yield the values of the cookies in ``Cookie`` and ``Set-Cookie`` headers."""
    done = 0
    for at in positions(low, "cookie"):
        header = _COOKIE.match(text, at) if at >= done else None
        if header is not None:
            is_set = low[max(0, at - 4) : at] == "set-"
            for pair in _pairs(text, header.end()):
                done = pair.end()
                if is_value(pair[2]) and pair[2].lower() not in STATES:
                    yield pair.span(2)
                if is_set:  # the other pairs are attributes such as Path
                    break


def _pairs(text: str, at: int) -> Iterator[re.Match[str]]:
    pair = _PAIR().match(text, at)
    while pair is not None:
        yield pair
        pair = _PAIR().match(text, pair.end()) if pair[3] else None


def command_logins_in(text: str, low: str) -> Iterator[tuple[int, int]]:
    """Yield logins and passwords in options of commands, such as ``curl -u user:password``."""
    for command, option in _COMMAND_OPTIONS.items() if " -" in low or "pass:" in low else ():
        if command not in low:
            continue
        starts = [at for at in positions(low, command) if _is_command(low, at, at + len(command))]
        for at, following in pairwise([*starts, len(text)]):
            limit = min(at + _LONGEST_COMMAND, following)
            newline = _END_OF_COMMAND.search(text, at, limit)
            limit = newline.start() if newline else limit
            for found in option().finditer(text, at, limit + _LONGEST_COMMAND):
                if found.start() >= limit:
                    break
                value = found[found.lastindex or 0]
                password = value.partition(":")[2] if _LOGIN in _COMMANDS[command] else value
                if not is_placeholder(value) and not is_placeholder(password) and password.lower() not in STATES:
                    yield found.span(found.lastindex or 0)


def _is_command(low: str, start: int, end: int) -> bool:
    return _REST_OF_COMMAND.match(low, end) is not None and not low[max(0, start - 1) : start].isalnum()


def open_value_from(text: str, start: int) -> int:
    """Return the start of a value with spaces that is not complete yet; else the length of the text.

    ``start`` is the end of the text that was emitted before.
    """
    window = text[max(start - _LONGEST_OPEN, len(text) - _LONGEST_OPEN, 0) :]
    opened = _open_quote(window) if _ANY_QUOTE.search(window) else len(window)
    return min(_open_cookie(text, max(0, start - _COOKIE_HEADER)), len(text) - len(window) + opened)


def _open_cookie(text: str, start: int) -> int:
    low = lower(text[start:])
    for at in positions(low, "cookie"):
        header = _COOKIE.match(text, start + at)
        if header is not None:
            end = header.end()
            for pair in _pairs(text, end):
                end = pair.end()
            if _PAIR_BEGUN.match(text, end):
                return header.end()
    return len(text)


def _open_quote(window: str) -> int:
    low, option = lower(window), _OPEN_OPTION.search(window)
    first = option.start(1) if option else len(window)
    for start in chain.from_iterable(_names_in(low)):
        found = _OPEN_VALUE().match(window, start)
        first = min(first, found.start("open")) if found else first
    return first
