"""Check the arguments of allowed programs, with extra checks for those with their own language."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..._toolbox.command_line import Word
from .allowlist import AWK, FIND_TESTS, FIND_WORDS, PROGRAMS, SED, TAR, TEST_WORDS, UNZIP, Program, word_set
from .git import check_git
from .options import BlockedError, ParsedOptions, parse_options
from .paths import PathScope

_SED_PART = (
    r"(?:[^{0}\\\n\[]|\\[^\n]|\[\^?\]?(?:[^\]\[{0}\\\n]|\[:[a-z]+:\])*\])*"  # brackets must not contain the delimiter
)
_SED_ADDRESS = rf"(?:[0-9]+(?:~[0-9]+)?|\$|/{_SED_PART.format('/')}/I?)"
_SED_REPLACE = "|".join(
    f"{sign}{_SED_PART.format(sign)}{sign}(?:[^{sign}\\\\\\n]|\\\\[^\\n])*{sign}" for sign in ("/", r"\|", "#", ",")
)
_SED_COMMAND = re.compile(
    rf"(?:{_SED_ADDRESS}(?: ?, ?(?:\+[0-9]+|{_SED_ADDRESS}))?)? ?!? ?(?:[pdqQ=hHgGxnND]|s(?:{_SED_REPLACE})[gpiI0-9]*)"
    r"(?=[\s;]|\Z)[ \t\n;]*"
)
_AWK_RUNS = re.compile(
    r"\b(?:system|getline|ENVIRON|ARGV|ARGC|SYMTAB|FUNCTAB|PROCINFO|include|load|namespace|extension)\b|@|\\\n"
)
_JQ_READS = re.compile(r"(?<!\.)\b(?:import|include|modulemeta|env|ENV|get_search_list)\b")
_NUMBER = re.compile(r"[-+]*(?:0x)?[0-9A-Fa-f]+")
_NEWER = re.compile(r"-(?:newer[aBcm]t)")
_NEWER_THAN = re.compile(r"-(?:newer|anewer|cnewer|samefile|newer[aBcm][aBcm])")
_PS_WORDS = word_set(
    "a ax aux auxf auxw auxww axf axu axww f l u ux uxf w ww x xf -A -F -H -T -a -ax -aux -axu -f -l -w -ww"
)
_PS_EVERY = word_set("-e -ef -eF -el -elf -eLf -ejH -eo -Ao -o -axo -p -C --forest --no-headers")
_PS_VALUE = {"-eo": "-o", "-Ao": "-o", "-o": "-o", "-axo": "-o", "-p": "-p", "-C": "-C"}


def is_listed(name: str) -> bool:
    """Return whether a program is on the allowlist."""
    return name in PROGRAMS or name in _OWN_CHECKS


def check_arguments(name: str, args: Sequence[Word], scope: PathScope) -> None:
    """Check the arguments of a program that is on the allowlist.

    Raises:
        BlockedError: the arguments could do more than read, or name a forbidden path.
    """
    own = _OWN_CHECKS.get(name)
    if own is not None:
        own(name, args, scope)
        return
    program = PROGRAMS[name]
    if program.operands == "text" and not (program.short or program.long):
        return
    given = parse_options(name, program, args, scope.folder is not None)
    _check_operands(name, program, given, scope)


def _check_operands(name: str, program: Program, given: ParsedOptions, scope: PathScope) -> None:
    operands = given.operands
    if program.operands not in ("paths", "text", "pattern") or program.max_operands is not None:
        _reject_globs(operands)
    if program.max_operands is not None and len(operands) > program.max_operands:
        message = f"{name} takes at most {program.max_operands} arguments here. Leave out the others."
        raise BlockedError(f"operands: {name}", message)
    if program.operands == "none" and operands:
        raise BlockedError(f"operands: {name}", f"{name} takes no arguments here. Leave them out.")
    if program.operands == "plus" and not all(operand.text.startswith("+") for operand in operands):
        raise BlockedError(f"operands: {name}", f"{name} takes only a format such as +%F here.")
    first = 0
    if program.operands == "pattern":
        first = 0 if given.options & set(program.pattern_options) else 1
    if program.operands in ("paths", "pattern"):
        for path in (*operands[first:], *given.paths):
            scope.check_read(path)


def _reject_globs(words: Sequence[Word]) -> None:
    for word in words:
        if "glob" in word.expansions:
            message = f"{word.raw!r:.100} is not clear here. Write it out, or put it in quotes."
            raise BlockedError("expansion", message, final=True)


def _check_code(
    name: str, program: Program, args: Sequence[Word], scope: PathScope, *options: str
) -> tuple[list[Word], ParsedOptions]:
    """Return the scripts among the arguments, and all parsed options; check the paths."""
    given = parse_options(name, program, args, scope.folder is not None)
    codes = given.values_of(*options)
    paths = given.operands
    if not codes:
        codes, paths = given.operands[:1], given.operands[1:]
    _reject_globs(codes)
    for path in (*paths, *given.paths):
        scope.check_read(path)
    return codes, given


def _check_sed(name: str, args: Sequence[Word], scope: PathScope) -> None:
    for code in _check_code(name, SED, args, scope, "e", "expression")[0]:
        text = code.text.lstrip(" \t\n;")
        at = 0
        while at < len(text):
            found = _SED_COMMAND.match(text, at)
            if found is None:
                message = f"The sed script {text!r:.80} is not allowed. Only print and replace, as 1,20p or s/a/b/g."
                raise BlockedError("script: sed", message)
            at = found.end()


def _check_awk(name: str, args: Sequence[Word], scope: PathScope) -> None:
    codes, given = _check_code(name, AWK, args, scope)
    if any(word.text.startswith("/inet") for word in given.operands):
        raise BlockedError(f"operands: {name}", f"{name} may not read from a network. Use a file.", final=True)
    for code in codes:
        text = code.text.replace("||", "").replace(">=", "")
        written = text[text.index("print") :] if "print" in text else ""  # before print, > is a comparison
        if _AWK_RUNS.search(text) or "|" in text or ">" in written:
            message = f"This {name} program is not allowed: no > after print, no |, @, system or getline. Only print."
            raise BlockedError(f"script: {name}", message)


def _check_jq(name: str, args: Sequence[Word], scope: PathScope) -> None:
    for code in _check_code(name, PROGRAMS["jq"], args, scope)[0]:
        if _JQ_READS.search(code.text):
            raise BlockedError(
                "script: jq", "This jq filter is not allowed: it may not import, or read the environment."
            )


def _check_diff(name: str, args: Sequence[Word], scope: PathScope) -> None:
    given = parse_options(name, PROGRAMS["diff"], args, scope.folder is not None)
    if scope.folder is not None and given.options & {"r", "recursive"} and "no-dereference" not in given.options:
        raise BlockedError("option: diff -r", "diff -r follows links. Write diff -r --no-dereference.")
    _check_operands(name, PROGRAMS["diff"], given, scope)


def _check_find(name: str, args: Sequence[Word], scope: PathScope) -> None:
    left = list(reversed(args))
    started = False
    while left:
        word = left.pop()
        text = word.text
        if text in FIND_WORDS:
            started = started or text != "-P"
        elif text in FIND_TESTS or _NEWER.fullmatch(text) or _NEWER_THAN.fullmatch(text):
            started = True
            if not left:
                raise BlockedError("option without a value", f"find {text} needs a value after it.")
            value = left.pop()
            if _NEWER_THAN.fullmatch(text):
                scope.check_read(value)
        elif text.startswith("-") or started:
            message = f"find {text!r:.60} is not allowed. Find by name, type, size and time, and print only."
            raise BlockedError(f"option: find {text:.60}" if text.startswith("-") else "operands: find", message)
        else:
            scope.check_read(word)


def _check_test(name: str, args: Sequence[Word], scope: PathScope) -> None:
    _reject_globs(args)
    for word in args:
        text = word.text
        if text.startswith("-") and text not in TEST_WORDS and not re.fullmatch("-[0-9]*", text):
            message = f"{name} {text:.60} is not allowed. Use -e, -f, -d, = and the like."
            raise BlockedError(f"option: {name} {text:.60}", message)


def _check_printf(name: str, args: Sequence[Word], scope: PathScope) -> None:
    if args and args[0].text.startswith("-") and args[0].text != "--":
        raise BlockedError("option: printf", "printf takes no options here. Begin with the format.")


def _check_strings(name: str, args: Sequence[Word], scope: PathScope) -> None:
    if any(word.text.startswith("@") for word in args):
        raise BlockedError("operands: strings", "strings may not take arguments from a file. Put ./ before the name.")
    given = parse_options(name, PROGRAMS["strings"], args, scope.folder is not None)
    _check_operands(name, PROGRAMS["strings"], given, scope)


def _check_tar(name: str, args: Sequence[Word], scope: PathScope) -> None:
    words = list(args)
    if words and re.fullmatch(r"[tvzjJ]+f", words[0].text):  # the old style without a dash
        words[0] = Word("-" + words[0].text)
    given = parse_options(name, TAR, words, scope.folder is not None)
    if not given.options & {"t", "list"}:
        raise BlockedError("option: tar", "tar may only list: tar -tf FILE.")
    _reject_globs(given.paths)
    for path in given.paths:
        if ":" in path.text:
            raise BlockedError(
                "operands: tar", "The archive may not be on another machine. Use a file without ':' in its name."
            )
        scope.check_read(path)


def _check_unzip(name: str, args: Sequence[Word], scope: PathScope) -> None:
    given = parse_options(name, UNZIP, args, scope.folder is not None)
    if not given.options & {"l", "v", "t"} or any(word.text.startswith("-") for word in given.operands):
        raise BlockedError("option: unzip", "unzip may only list: unzip -l FILE.")
    _reject_globs(given.operands)
    for path in given.operands[:1]:
        scope.check_read(path)


def _check_xxd(name: str, args: Sequence[Word], scope: PathScope) -> None:
    _reject_globs(args)
    left = list(reversed(args))
    files = []
    while left:
        text = left[-1].text
        word = left.pop()
        if not text.startswith("-") or text == "-":
            files.append(word)
        elif re.fullmatch(r"-[cglos]", text) and left and _NUMBER.fullmatch(left[-1].text):
            left.pop()
        elif not re.fullmatch(r"-(?:[abeiupC]|ps|[cglos](?:0x)?[0-9]+)", text):
            raise BlockedError(
                f"option: xxd {text:.60}", f"xxd {text:.60} is not allowed. Use -l, -s, -c, -g, -b and -p."
            )
    if len(files) > 1:
        raise BlockedError("operands: xxd", "xxd takes only one file here: it writes to a second one.")
    for file in files:
        scope.check_read(file)


def _check_ps(name: str, args: Sequence[Word], scope: PathScope) -> None:
    _reject_globs(args)
    words = [word.text for word in args]
    every = any(word.startswith("-e") for word in words)
    allowed = _PS_EVERY if every else _PS_WORDS | _PS_EVERY
    while words:
        word = words.pop(0)
        value = {"-o": r"[a-z0-9_%,=+]+", "-p": r"[0-9, ]+", "-C": r"[A-Za-z0-9_.-]+"}.get(_PS_VALUE.get(word, ""), "")
        fits = not value or (words and re.fullmatch(value, words[0]) and "env" not in words[0])
        if value and fits:
            words.pop(0)
        sorting = re.fullmatch(r"--sort=[a-z0-9_%,+-]+", word)
        if not fits or not (word in allowed or sorting):
            raise BlockedError(
                f"option: ps {word:.60}", f"ps {word:.60} is not allowed. Use ps aux, ps -ef or ps -eo pid,comm."
            )


_OWN_CHECKS: dict[str, Callable[[str, Sequence[Word], PathScope], None]] = {
    "[": _check_test,
    "awk": _check_awk,
    "diff": _check_diff,
    "find": _check_find,
    "gawk": _check_awk,
    "git": check_git,
    "jq": _check_jq,
    "mawk": _check_awk,
    "printf": _check_printf,
    "ps": _check_ps,
    "sed": _check_sed,
    "strings": _check_strings,
    "tar": _check_tar,
    "test": _check_test,
    "unzip": _check_unzip,
    "xxd": _check_xxd,
}
