"""The developer profile: ordinary work inside a sandbox runs, and steps that a person should decide about are asked.

This is a policy; the sandbox enforces the limits. The policy explains early what the sandbox would stop anyway, such as
the network, and asks before work is lost or published. It cannot see the commands that a program runs by itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise, product, takewhile

from ..._toolbox.command_line import Word
from .errors import ApprovalNeededError, BlockedError
from .patterns import Pattern, may_occur
from .script import SHELLS, is_interpreter

WRAPPERS = frozenset(
    """
    builtin busybox chrt command entr env exec find flock hatch ionice nice nohup npx numactl parallel pdm pipenv
    pipx poetry script setsid stdbuf strace taskset time timeout unbuffer uv watch xargs xvfb-run
    """.split()  # noqa: SIM905
)
"""Programs with a command among their arguments. Each word after them may be the program of that command."""

_NEEDS_ROOT = frozenset(
    """
    at chroot crontab doas fdisk halt insmod mkfs modprobe mount nsenter passwd pkexec poweroff reboot run0 runuser
    service shutdown su sudo systemctl umount unshare useradd
    """.split()  # noqa: SIM905
)

_MAX_WORDS = 300
_ANY_WORD = Word("", expansions=frozenset({"variable"}), pattern="*")
_RULES: dict[str, str] = {
    "sends commits to another machine": "git push|send-email",
    "discards changes that are not committed": """
        git reset --hard
        git clean
        git checkout --force|-f|.
        git restore .
        git stash drop|clear
    """,
    "removes commits or their history": """
        git branch -D
        git filter-branch|filter-repo|prune
        git reflog expire|delete
        git update-ref -d
        git gc --prune=now
    """,
    "removes all files that it finds": "find -delete",
    "publishes something": """
        npm publish|unpublish|deprecate|dist-tag
        yarn|pnpm|cargo|poetry|uv|flit|hatch|pdm publish
        cargo yank
        gem push
        twine upload
        mvn deploy
        gradle|gradlew publish*
    """,
    "needs the network": """
        git fetch|pull|clone|ls-remote
        git submodule update|add
        git remote update
        pip|pip3|pipx|pipenv install|download|wheel
        uv add|sync|lock|tool
        uv pip|python install
        poetry|pdm add|install|update|lock
        conda install|create|update
        npm install|i|ci|add|update|create
        yarn|pnpm add|install|i|up
        cargo install|add|update|fetch
        go get|install
        gem|bundle install|update
        composer install|require|update
        apt|apt-get|apk|dnf|yum|brew|pacman|snap
        curl|wget|aria2c|ssh|scp|sftp|nc|ncat|netcat|telnet|ftp|socat|ping|dig|nslookup
        rsync *:*
        gh|glab|aws|az|gcloud|kubectl|helm|docker|podman|terraform
    """,
}
"""Commands that need approval, by reason. ``a|b`` are alternatives."""


def _by_program() -> dict[str, list[tuple[Pattern, str]]]:
    found: dict[str, list[tuple[Pattern, str]]] = {}
    for reason, lines in _RULES.items():
        for line in lines.strip().split("\n"):
            for pattern in product(*(word.split("|") for word in line.split())):
                found.setdefault(pattern[0], []).append((pattern, reason))
    return found


_ASKED = _by_program()
_OFFLINE = ("--no-index", "--offline", "--frozen", "--local", "*localhost*", "*127.0.0.1*")
"""Words with which a command does not use the network."""
_GENERATED = tuple(
    """
    __pycache__ *.pyc *.pyo *.py[co] *.egg-info .pytest_cache .mypy_cache .ruff_cache .tox .nox .coverage htmlcov build
    dist node_modules target .next .turbo .parcel-cache *.tsbuildinfo *.o *.obj *.class *.gcda *.gcno .DS_Store
    """.split()  # noqa: SIM905
)
"""Names of files and folders that tools make again. Removing many of them is not asked about."""
_EXEC_OPTION = re.compile("-[A-Za-z]*x|--exec=?")
_COMMAND_OPTION = re.compile("-[A-Za-z]*c|--command=?")
_SCRIPT_OPTIONS = {
    "env": re.compile("-[A-Za-z]*S|--split-string=?"),
    "flock": _COMMAND_OPTION,
    "script": _COMMAND_OPTION,
}
_ALIAS = re.compile(r"(-c)?alias\.", re.IGNORECASE)
_GIT_VALUES = ("-C", "-c", "--git-dir", "--work-tree", "--namespace")


def possible_commands(words: Sequence[Word]) -> Iterator[Sequence[Word]]:
    """Iterate over a command and the commands that may be among its arguments (``timeout 5 make``, ``python -m pip``).

    Raises:
        BlockedError: there are too many words, or the program is not written plainly.
    """
    name = program_name(words[0])
    yield words
    if name in WRAPPERS:
        if len(words) > _MAX_WORDS:
            raise BlockedError("too long", f"{name} has more than {_MAX_WORDS} arguments here. Use fewer.", final=True)
        if name == "find" and _finds_generated(words):
            words = [Word(_GENERATED[0]) if word.text == "{}" else word for word in words]
        more = [_ANY_WORD] if name in ("xargs", "parallel") else []  # they add words from their input
        for at in range(1, len(words)):
            if not words[at].text.startswith("-"):
                yield [*words[at:], *more]
    elif name.startswith("python"):
        module = next((at for at, word in enumerate(words) if word.text == "-m"), None)
        if module is not None and module + 1 < len(words):
            yield words[module + 1 :]


def program_name(word: Word) -> str:
    """Return the name of a program without its folder.

    Raises:
        BlockedError: the name is only known when the command runs.
    """
    if word.pattern and re.search(r"[*?]|\[", os.path.basename(word.pattern)):
        message = f"{word.raw!r:.100} does not say which program would run. Write its name plainly."
        raise BlockedError("program name", message, final=True)
    return os.path.basename(word.text)


def scripts_in(words: Sequence[Word]) -> list[str]:
    """Return the scripts among the arguments of a shell, ``eval``, git and other programs that run them."""
    name = os.path.basename(words[0].text)
    texts = [word.text for word in words[1:]]
    if name == "eval":
        return [" ".join(texts)]
    if name == "trap":
        return [text for text in texts if not text.startswith("-")][:1]
    if name in _SCRIPT_OPTIONS:
        return _values(texts, _SCRIPT_OPTIONS[name])
    if name == "git":
        return _scripts_of_git(texts)
    if name not in SHELLS:
        return []
    option = next((at for at, word in enumerate(words) if re.fullmatch("-[A-Za-z]*c[A-Za-z]*", word.text)), len(words))
    return [word.text for word in words[option + 1 :] if not word.text.startswith("-")][:1]


def _scripts_of_git(texts: Sequence[str]) -> list[str]:
    aliases = [value for text in texts for key, is_one, value in [text.partition("=")] if is_one and _ALIAS.match(key)]
    found = [value[1:] if value.startswith("!") else f"git {value}" for value in aliases]
    if "foreach" in texts:
        found.append(" ".join(text for text in texts[texts.index("foreach") + 1 :] if text != "--recursive"))
    if "rebase" in texts:
        found += _values(texts, _EXEC_OPTION)
    return found


def _values(texts: Sequence[str], option: re.Pattern[str]) -> list[str]:
    """Return the values of an option, which are in its argument or in the next one."""
    found = [(match, following) for text, following in pairwise([*texts, ""]) if (match := option.match(text))]
    return [match.string[match.end() :] or following for match, following in found]


def code_in(words: Sequence[Word]) -> list[str]:
    """Return the arguments of an interpreter, which may be code: ``python -c '...'``."""
    return [word.text for word in words[1:]] if is_interpreter(words[0]) else []


def check_policy(words: Sequence[Word], folder: str, network: bool) -> None:
    """Check one command against the rules of the profile.

    Args:
        words: the command.
        folder: the folder in which it runs.
        network: whether the sandbox has a network. Without one, commands that need it fail by themselves, and the yes
            of a person would change nothing.

    Raises:
        BlockedError: the command cannot be allowed in a sandbox.
        ApprovalNeededError: a person should decide.
    """
    text = words[0].text
    name = os.path.basename(text) if text.startswith(("/", "./")) else text  # not tests/docker after a wrapper
    if name in _NEEDS_ROOT:
        message = f"{name} is not allowed: it needs rights that this terminal does not have. Go on without it."
        raise BlockedError(f"rights: {name}", message, final=True)
    plain = _without_leading_options(name, words)
    for pattern, why in _ASKED.get(name, ()):
        if len(pattern) > 1 and pattern[1][0].isalpha() and not may_occur(pattern[:2], plain[:2]):
            continue  # a subcommand comes first
        if may_occur(pattern, plain):
            if why == "needs the network" and (not network or _is_offline(words)):
                continue
            if (name, *pattern[1:]) in _EXCEPTIONS and _EXCEPTIONS[name, *pattern[1:]](words):
                continue
            shown = " ".join(pattern)
            raise ApprovalNeededError(f"{shown} {why}", f"{shown} {why}, so it needs approval.")
    if name == "rm":
        _check_rm(words, folder)
    if name in SHELLS and _reads_input(words):
        message = f"{name} runs commands from its input, so it needs approval."
        raise ApprovalNeededError(f"{name} runs commands from its input", message)


def _only_unstages(words: Sequence[Word]) -> bool:
    texts = {word.text for word in words}
    return bool(texts & {"--staged", "-S"}) and not texts & {"--worktree", "-W"}


def _finds_generated(words: Sequence[Word]) -> bool:
    """Return whether a ``find`` finds only files that tools make again, by the names that it is given."""
    texts = [word.text for word in words]
    names = [value for test, value in pairwise(texts) if test in ("-name", "-iname")]
    plain = not {"-o", "-or", ",", "!", "-not"} & set(texts) and not any(word.pattern for word in words)
    return plain and any(name in _GENERATED for name in names)


_EXCEPTIONS = {
    ("git", "restore", "."): _only_unstages,
    ("find", "-delete"): _finds_generated,
}
"""Commands that match a pattern of a rule, but not its reason."""


def _is_offline(words: Sequence[Word]) -> bool:
    return any(fnmatchcase(word.text, form) for word in words for form in _OFFLINE)


def _without_leading_options(name: str, words: Sequence[Word]) -> list[Word]:
    """Return the command without the options between its name and the next word: ``git -C x push`` is ``git push``."""
    left = list(words[1:])
    while left and left[0].text.startswith("-") and name != "find":
        option = left.pop(0)
        if name == "git" and option.text in _GIT_VALUES and left:
            left.pop(0)
    return [words[0], *left] if left else list(words)


def _check_rm(words: Sequence[Word], folder: str) -> None:
    """Ask before ``rm`` removes many files: all matches of a glob, the folder itself, or its ``.git``."""
    options = [word.text for word in words[1:] if word.text.startswith("-")]
    recursive = any(re.match("-[A-Za-z]*[rR]|--rec", option) for option in options)
    paths = [word for word in words[1:] if not word.text.startswith("-")]
    whole = (folder, os.path.join(folder, ".git"), *_parents(folder))
    for path in paths:
        real = os.path.realpath(os.path.join(folder, path.text))
        unclear = path.pattern and (recursive or os.path.basename(path.pattern) == "*")
        unclear = unclear or (recursive and path.text == "{}")  # find -exec rm -r {}
        if unclear and _is_generated(path):
            continue
        if unclear or (recursive and (real in whole or path.text.startswith("~"))):
            break
    else:
        if paths or not recursive:
            return
    raise ApprovalNeededError("rm may remove many files", "rm may remove many files here, so it needs approval.")


def _is_generated(path: Word) -> bool:
    """Return whether a glob only matches what tools make again: ``*.egg-info``, ``build/*``, but not ``$X/build``."""
    parts = path.text.split("/")
    known = any(fnmatchcase(part, glob) for part in parts for glob in _GENERATED)
    return known and ".." not in parts and not re.search("[$`{]", path.raw)


def _reads_input(words: Sequence[Word]) -> bool:
    """Return whether a shell runs commands that it reads from its input: it has no script, or the option ``-s``."""
    options = list(takewhile(lambda text: text.startswith("-"), (word.text for word in words[1:])))
    letters = "".join(option for option in options if not option.startswith("--"))
    if "c" in letters or "--version" in options:
        return False
    return "s" in letters or len(options) == len(words) - 1


def _parents(folder: str) -> list[str]:
    found = [os.path.dirname(folder)]
    while found[-1] != os.path.dirname(found[-1]):
        found.append(os.path.dirname(found[-1]))
    return found
