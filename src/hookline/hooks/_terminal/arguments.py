"""What single programs may be told: those whose arguments are more than options and paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..._toolbox.command_line import Word
from .allowlist import AWK, FIND_TESTS, FIND_WORDS, PROGRAMS, SED, TAR, TEST_WORDS, UNZIP, Program, words_of
from .git import judge_git
from .options import Given, Refused, read_options
from .paths import Place

_SED_PART = r"(?:[^{0}\\\n\[]|\\[^\n]|\[\^?\]?(?:[^\]\[{0}\\\n]|\[:[a-z]+:\])*\])*"  # no delimiter in brackets
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
_PS_WORDS = words_of(
    "a ax aux auxf auxw auxww axf axu axww f l u ux uxf w ww x xf -A -F -H -T -a -ax -aux -axu -f -l -w -ww"
)
_PS_EVERY = words_of("-e -ef -eF -el -elf -eLf -ejH -eo -Ao -o -axo -p -C --forest --no-headers")
_PS_VALUE = {"-eo": "-o", "-Ao": "-o", "-o": "-o", "-axo": "-o", "-p": "-p", "-C": "-C"}


def knows(name: str) -> bool:
    """Whether a program is on the list."""
    return name in PROGRAMS or name in _OWN


def judge_program(name: str, args: Sequence[Word], place: Place) -> None:
    """Judge the arguments of a program that is on the list.

    Raises:
        Refused: they could do more than read, or read what may not be read.
    """
    own = _OWN.get(name)
    if own is not None:
        own(name, args, place)
        return
    program = PROGRAMS[name]
    if program.operands == "text" and not (program.short or program.long):
        return
    given = read_options(name, program, args, place.folder is not None)
    _judge_operands(name, program, given, place)


def _judge_operands(name: str, program: Program, given: Given, place: Place) -> None:
    operands = given.operands
    if program.operands not in ("paths", "text", "pattern") or program.at_most is not None:
        _no_globs(operands)
    if program.at_most is not None and len(operands) > program.at_most:
        message = f"{name} takes at most {program.at_most} arguments here. Leave out the others."
        raise Refused(f"operands: {name}", message)
    if program.operands == "none" and operands:
        raise Refused(f"operands: {name}", f"{name} takes no arguments here. Leave them out.")
    if program.operands == "plus" and not all(operand.text.startswith("+") for operand in operands):
        raise Refused(f"operands: {name}", f"{name} may only be given a format such as +%F.")
    first = 0
    if program.operands == "pattern":
        first = 0 if given.options & set(program.instead) else 1
    if program.operands in ("paths", "pattern"):
        for path in (*operands[first:], *given.paths):
            place.read(path)


def _no_globs(words: Sequence[Word]) -> None:
    for word in words:
        if "glob" in word.expansions:
            message = f"{word.raw!r:.100} is not clear here. Write it out, or put it in quotes."
            raise Refused("expansion", message, final=True)


def _code(name: str, program: Program, args: Sequence[Word], place: Place, *options: str) -> tuple[list[Word], Given]:
    """The texts in a program's own language, and what else there is."""
    given = read_options(name, program, args, place.folder is not None)
    codes = given.all_of(*options)
    paths = given.operands
    if not codes:
        codes, paths = given.operands[:1], given.operands[1:]
    _no_globs(codes)
    for path in (*paths, *given.paths):
        place.read(path)
    return codes, given


def _sed(name: str, args: Sequence[Word], place: Place) -> None:
    for code in _code(name, SED, args, place, "e", "expression")[0]:
        text = code.text.lstrip(" \t\n;")
        at = 0
        while at < len(text):
            found = _SED_COMMAND.match(text, at)
            if found is None:
                message = f"The sed script {text!r:.80} is not allowed. Only print and replace, as 1,20p or s/a/b/g."
                raise Refused("script: sed", message)
            at = found.end()


def _awk(name: str, args: Sequence[Word], place: Place) -> None:
    codes, given = _code(name, AWK, args, place)
    if any(word.text.startswith("/inet") for word in given.operands):
        raise Refused(f"operands: {name}", f"{name} may not read from a network. Use a file.", final=True)
    for code in codes:
        text = code.text.replace("||", "").replace(">=", "")
        written = text[text.index("print") :] if "print" in text else ""  # before it, > only compares
        if _AWK_RUNS.search(text) or "|" in text or ">" in written:
            message = f"This {name} program is not allowed: no > after print, no |, @, system or getline. Only print."
            raise Refused(f"script: {name}", message)


def _jq(name: str, args: Sequence[Word], place: Place) -> None:
    for code in _code(name, PROGRAMS["jq"], args, place)[0]:
        if _JQ_READS.search(code.text):
            raise Refused("script: jq", "This jq filter is not allowed: it may not import, or read the environment.")


def _diff(name: str, args: Sequence[Word], place: Place) -> None:
    given = read_options(name, PROGRAMS["diff"], args, place.folder is not None)
    if place.folder is not None and given.options & {"r", "recursive"} and "no-dereference" not in given.options:
        raise Refused("option: diff -r", "diff -r follows links. Write diff -r --no-dereference.")
    _judge_operands(name, PROGRAMS["diff"], given, place)


def _find(name: str, args: Sequence[Word], place: Place) -> None:
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
                raise Refused("option without a value", f"find {text} needs a value after it.")
            value = left.pop()
            if _NEWER_THAN.fullmatch(text):
                place.read(value)
        elif text.startswith("-") or started:
            message = f"find {text!r:.60} is not allowed. Find by name, type, size and time, and print only."
            raise Refused(f"option: find {text:.60}" if text.startswith("-") else "operands: find", message)
        else:
            place.read(word)


def _test(name: str, args: Sequence[Word], place: Place) -> None:
    _no_globs(args)
    for word in args:
        text = word.text
        if text.startswith("-") and text not in TEST_WORDS and not re.fullmatch("-[0-9]*", text):
            message = f"{name} {text:.60} is not allowed. Use -e, -f, -d, = and the like."
            raise Refused(f"option: {name} {text:.60}", message)


def _printf(name: str, args: Sequence[Word], place: Place) -> None:
    if args and args[0].text.startswith("-") and args[0].text != "--":
        raise Refused("option: printf", "printf takes no options here. Begin with the format.")


def _strings(name: str, args: Sequence[Word], place: Place) -> None:
    if any(word.text.startswith("@") for word in args):
        raise Refused("operands: strings", "strings may not take arguments from a file. Put ./ before the name.")
    given = read_options(name, PROGRAMS["strings"], args, place.folder is not None)
    _judge_operands(name, PROGRAMS["strings"], given, place)


def _tar(name: str, args: Sequence[Word], place: Place) -> None:
    words = list(args)
    if words and re.fullmatch(r"[tvzjJ]+f", words[0].text):  # the old style, where it means the same
        words[0] = Word("-" + words[0].text)
    given = read_options(name, TAR, words, place.folder is not None)
    if not given.options & {"t", "list"}:
        raise Refused("option: tar", "tar may only list: tar -tf FILE.")
    _no_globs(given.paths)
    for path in given.paths:
        if ":" in path.text:
            raise Refused(
                "operands: tar", "The archive may not be on another machine. Use a file without ':' in its name."
            )
        place.read(path)


def _unzip(name: str, args: Sequence[Word], place: Place) -> None:
    given = read_options(name, UNZIP, args, place.folder is not None)
    if not given.options & {"l", "v", "t"} or any(word.text.startswith("-") for word in given.operands):
        raise Refused("option: unzip", "unzip may only list: unzip -l FILE.")
    _no_globs(given.operands)
    for path in given.operands[:1]:
        place.read(path)


def _xxd(name: str, args: Sequence[Word], place: Place) -> None:
    _no_globs(args)
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
            raise Refused(f"option: xxd {text:.60}", f"xxd {text:.60} is not allowed. Use -l, -s, -c, -g, -b and -p.")
    if len(files) > 1:
        raise Refused("operands: xxd", "xxd may only be given one file: it writes to a second.")
    for file in files:
        place.read(file)


def _ps(name: str, args: Sequence[Word], place: Place) -> None:
    _no_globs(args)
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
            raise Refused(
                f"option: ps {word:.60}", f"ps {word:.60} is not allowed. Use ps aux, ps -ef or ps -eo pid,comm."
            )


_OWN: dict[str, Callable[[str, Sequence[Word], Place], None]] = {
    "[": _test, "awk": _awk, "diff": _diff, "find": _find, "gawk": _awk, "git": judge_git, "jq": _jq, "mawk": _awk,
    "printf": _printf, "ps": _ps, "sed": _sed, "strings": _strings, "tar": _tar, "test": _test,
    "unzip": _unzip, "xxd": _xxd,
}  # fmt: skip
