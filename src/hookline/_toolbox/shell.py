"""A tool that runs command lines, in a sandbox or without one."""

from __future__ import annotations

import asyncio
import glob
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from .._base.text import is_number
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from ..tools._tool import Effect, Tool
from .command_line import (
    MAX_LENGTH,
    CommandError,
    CommandLine,
    Pipeline,
    Redirect,
    ShellCommand,
    Word,
    check_characters,
    parse_command,
)
from .processes import FileRedirect, JobStoppedError, ProcessJob, ProcessSpec, run_variables, search_path

if TYPE_CHECKING:
    from pathlib import Path

    from .sandbox import ConfinedFolder, Sandbox

_INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "TMPDIR", "TZ", "USER")
_SET = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    # Git must not use a data folder as a bare repository, and must not start programs when it reads a repository.
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "safe.bareRepository",
    "GIT_CONFIG_VALUE_0": "explicit",
    "GIT_CONFIG_KEY_1": "core.fsmonitor",
    "GIT_CONFIG_VALUE_1": "false",
}
_NO_NETWORK = {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0", "npm_config_fetch_retries": "0", "CARGO_NET_RETRY": "0"}
"""Without a network, programs fail at once: npm would try again for a minute."""
_CONFINED = """Run a command line with /bin/sh in the working folder. Returns its output and exit code.

It runs in a sandbox: other folders are read-only or not there, except /tmp and the home folder, which are private, and
{network}. Every call starts in the same folder and ends its background jobs."""
_MODES: dict[str, Any] = {"<": "read", ">": "write", ">>": "append"}
_MAX_NAMES = 20_000


def shell_tool(
    folder: str | os.PathLike[str],
    *,
    sandbox: Sandbox | Literal["auto", "bubblewrap", "landlock", "off"] = "auto",
    timeout: float = 60,
    max_output: int = 64_000,
    env: Mapping[str, str] | None = None,
    shell: bool = False,
) -> Tool:
    """Make the tool ``shell``, which runs a command line in a folder, inside a sandbox that the kernel enforces.

    Command lines run in ``/bin/sh``, with its full syntax. Inside the sandbox they can write to the folder and to a
    private home, can read the system's programs, and have no network; see :class:`Sandbox`. A :class:`TerminalGuard`
    decides which commands may be tried, and which a person is asked about.

    Programs get a small environment without your keys, and an empty standard input. When the time is up, the run is
    cancelled or the command has ended, all processes that it started are killed.

    With ``sandbox="off"`` commands have all your rights, so use a :class:`TerminalGuard`. The tool then starts programs
    itself: it supports pipes, ``&&``, ``||``, ``;``, globs, ``~``, ``cd`` and redirects to files. For anything else,
    such as variables and loops, the model gets an error that says what to write instead.

    Args:
        folder: the folder in which commands run, which must exist.
        sandbox: what commands can do, or a level with the defaults of :class:`Sandbox`. ``auto`` is the strongest level
            that works on this machine; if none does, the tool is refused.
        timeout: seconds that one command line may take.
        max_output: maximum number of bytes of output that the model gets: the first and the last half of them.
        env: additional environment variables.
        shell: without a sandbox, whether command lines that the tool cannot run itself are passed to ``/bin/sh``.

    Raises:
        RegistrationError: the folder does not exist, the level of the sandbox is not available here, commands could
            write files that Hookline uses, or an argument is invalid.

    Example::

        agent = Agent("bob", llm="local", tools=[shell_tool("work")], hooks=[TerminalGuard(profile="developer")])
    """
    from pathlib import Path

    if sys.platform == "win32":
        raise RegistrationError("the shell tool needs a POSIX system")
    root = Path(folder).resolve()
    if not root.is_dir():
        raise RegistrationError(f"the folder {str(folder)!r} does not exist")
    if not is_number(timeout) or not 0 < timeout < 1e9:
        raise RegistrationError(f"timeout= must be a positive number of seconds, not {timeout!r:.80}")
    if isinstance(max_output, bool) or not isinstance(max_output, int) or max_output < 100:
        raise RegistrationError(f"max_output= must be an integer number of bytes, at least 100, not {max_output!r:.80}")
    given = dict(env or {})
    if not all(isinstance(text, str) and "\0" not in text for text in (*given, *given.values())):
        raise RegistrationError("env= must be a mapping from names to strings")
    if not isinstance(shell, bool):
        raise RegistrationError(f"shell= must be True or False, not {shell!r:.80}")
    if sandbox == "off":
        runner = _Shell(root, float(timeout), max_output, given, shell)
        return Tool(runner.shell, folder=root, effects=["execute"], texts=["command"])
    from .sandbox import ConfinedFolder, Sandbox

    if not isinstance(sandbox, (str, Sandbox)):
        raise RegistrationError(f"sandbox= must be a Sandbox, a level or 'off', not {sandbox!r:.80}")
    wanted = Sandbox(sandbox) if isinstance(sandbox, str) else sandbox
    confined = ConfinedFolder(wanted, str(root))
    runs = _ConfinedShell(confined, float(timeout), max_output, given).shell
    hosts = wanted.egress.hosts
    effects: list[Effect] = ["execute", "network"] if hosts else ["execute"]
    description = _CONFINED.format(network="only a few hosts can be reached" if hosts else "there is no network")
    tool = Tool(runs, description=description, folder=root, effects=effects, texts=["command"])
    tool.sandbox = confined.level
    return tool


class _ConfinedShell:
    """The tool in a sandbox: ``/bin/sh`` runs the whole command line, redirects and globs included."""

    def __init__(self, confined: ConfinedFolder, seconds: float, limit: int, env: dict[str, str]) -> None:
        self._confined, self._seconds, self._limit = confined, seconds, limit
        self._env = env if confined.sandbox.egress.hosts else {**_NO_NETWORK, **env}

    async def shell(self, command: Annotated[str, Field(examples=["ls -l"])], ctx: Any = None) -> str:  # noqa: D417
        """Run a command line with /bin/sh in the sandbox.

        Args:
            command: the command line
        """
        if len(command) > MAX_LENGTH:
            raise CommandError(f"the command has {len(command)} characters; at most {MAX_LENGTH} are allowed")
        if not command.strip():
            raise CommandError("the command is empty")
        check_characters(command)
        env = {name: value for name in _INHERITED if (value := os.environ.get(name)) and name not in ("HOME", "TMPDIR")}
        env |= {**run_variables(ctx, self._confined.search_path), **_SET, **self._env}
        job = ProcessJob(self._limit, self._seconds, _reporter(ctx), self._confined.watch)

        def work() -> str:
            notes: list[str] = []
            with self._confined.process(["/bin/sh", "-c", command], env, self._seconds, notes.append) as start:
                text = _finish(job, lambda: job.run([start]), self._seconds)
            return "\n".join((*(f"[{note}]" for note in notes), text))  # first, where everybody sees them

        try:
            return await in_thread(work)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            job.stop()
            raise


class _Shell:
    """The tool without a sandbox."""

    def __init__(self, root: Path, seconds: float, limit: int, env: dict[str, str], fallback: bool) -> None:
        self._root, self._seconds, self._limit, self._env = root, seconds, limit, env
        self._fallback = fallback

    async def shell(self, command: Annotated[str, Field(examples=["ls -l"])], ctx: Any = None) -> str:  # noqa: D417
        """Run a command line in the working folder. Returns its output and exit code.

        Supported are pipes, &&, ||, ;, globs, cd, > and <, but no variables, no $(...), no loops and no background
        jobs. Every call starts in the same folder.

        Args:
            command: the command line
        """
        env = {name: value for name in _INHERITED if (value := os.environ.get(name))}
        env |= {**run_variables(ctx, search_path()), **_SET, **self._env}
        if f"{os.path.realpath(env.get('HOME', '/'))}/".startswith(f"{self._root}/"):
            env["GIT_CONFIG_GLOBAL"] = (
                os.devnull
            )  # the agent could write this file, and git runs the programs that it names
        try:
            line: CommandLine | None = parse_command(command)
            assert line is not None
            _check(line)
        except CommandError:
            if not self._fallback or "\0" in command:
                raise
            line = None
        job = ProcessJob(self._limit, self._seconds, _reporter(ctx))
        turn = _CommandRun(job, str(self._root), env)
        try:
            return await in_thread(turn.run, line, command, self._seconds)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            job.stop()
            raise


def _reporter(ctx: Any) -> Callable[[str], None]:
    return lambda text: None if ctx is None else ctx.progress(message=text)


def _finish(job: ProcessJob, run: Callable[[], int], seconds: float) -> str:
    """Run a job, and return its output with a line that says how it ended."""
    try:
        code = run()
    except TimeoutError:
        how = f"stopped after {seconds:g} s, because it took too long"
    except OverflowError as error:
        how = f"stopped {error}"
    except JobStoppedError:
        how = "stopped"
    else:
        how = f"exit code {code}" if code >= 0 else f"ended by signal {-code}, {signal.strsignal(-code)}"
    text = job.output.text
    return f"{text}[{how}]" if not text or text.endswith("\n") else f"{text}\n[{how}]"


class _CommandRun:
    """One running command line, in a worker thread."""

    def __init__(self, job: ProcessJob, folder: str, env: Mapping[str, str]) -> None:
        self._job, self._folder, self._env = job, folder, env

    def run(self, line: CommandLine | None, command: str, seconds: float) -> str:
        return _finish(self._job, lambda: self._by_shell(command) if line is None else self._list(line), seconds)

    def _print(self, text: str) -> None:
        self._job.output.add(f"{text}\n".encode(errors="replace"))

    def _list(self, line: CommandLine) -> int:
        code, operator = 0, ";"
        for pipeline, following in zip(line.pipelines, line.operators, strict=True):
            if not ((operator == "&&" and code != 0) or (operator == "||" and code == 0)):
                code = self._pipeline(pipeline)
                code = int(code == 0) if pipeline.negated else code
            operator = following
        return code

    def _pipeline(self, pipeline: Pipeline) -> int:
        try:
            starts = [self._start(command) for command in pipeline.commands]
            if not all(starts):
                return self._without_program(pipeline.commands[0])
            return self._job.run([start for start in starts if start is not None])
        except _CommandFailedError as failed:
            self._print(str(failed))
            return failed.code
        except (TimeoutError, BlockingIOError):
            raise
        except OSError as error:
            self._print(f"{error.filename or pipeline.commands[0].words[0].text}: {error.strerror}")
            return 126

    def _without_program(self, command: ShellCommand) -> int:
        """Run ``cd``, or a command that consists only of redirects or assignments."""
        if command.words:
            return self._cd([text for word in command.words[1:] for text in self._expanded(word)])
        openings = [self._opening(redirect) for redirect in command.redirects]
        if openings:
            start = ProcessSpec("/bin/true", ("true",), self._folder, self._env, tuple(openings))
            return self._job.run([start])
        return 0

    def _cd(self, to: list[str]) -> int:
        if len(to) > 1 or to in (["-"], [""]):
            raise _CommandFailedError("cd: give exactly one folder", 2)
        place = os.path.realpath(os.path.join(self._folder, to[0] if to else self._env.get("HOME", "/")))
        if not os.path.isdir(place) or not os.access(place, os.X_OK):
            raise _CommandFailedError(f"cd: no such folder: {to[0] if to else place!r}", 1)
        self._folder = place
        return 0

    def _start(self, command: ShellCommand) -> ProcessSpec | None:
        words = [text for word in command.words for text in self._expanded(word)]
        if not words or (words[0] == "cd" and command.words[0].text == "cd"):
            return None
        env = dict(self._env)
        for assignment in command.assignments:
            before = env.get(assignment.name, "") if assignment.added else ""
            env[assignment.name] = before + assignment.value.text
        path = env["PATH"]
        program = os.path.join(self._folder, words[0]) if "/" in words[0] else shutil.which(words[0], path=path)
        if program is None or not os.path.exists(program):
            raise _CommandFailedError(f"{words[0]}: program not found", 127)
        openings = tuple(self._opening(redirect) for redirect in command.redirects)
        return ProcessSpec(program, tuple(words), self._folder, env, openings)

    def _opening(self, redirect: Redirect) -> FileRedirect:
        if redirect.operator == ">&":
            return FileRedirect(redirect.descriptor, same_as=int(redirect.target.text))
        path = self._home(redirect.target)
        return FileRedirect(redirect.descriptor, path, _MODES[redirect.operator])

    def _by_shell(self, command: str) -> int:
        start = ProcessSpec("/bin/sh", ("sh", "-c", command), self._folder, self._env)
        try:
            return self._job.run([start])
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            self._print(f"/bin/sh: {error.strerror}")
            return 126

    def _expanded(self, word: Word) -> list[str]:
        """Expand a word to the files that its glob matches, or return the word itself."""
        if "glob" not in word.expansions:
            return [self._home(word)]
        pattern = word.pattern
        if "tilde" in word.expansions:
            pattern = glob.escape(self._env.get("HOME", "~")) + pattern[1:]
        found: list[str] = []
        for name in glob.iglob(pattern, root_dir=self._folder):
            found.append(name)
            if len(found) > _MAX_NAMES:
                raise _CommandFailedError(f"{word.raw:.80}: more than {_MAX_NAMES} files match", 126)
        # A file name that looks like an option must not become one.
        return [f"./{name}" if name.startswith("-") else name for name in sorted(found)] or [word.text]

    def _home(self, word: Word) -> str:
        return self._env.get("HOME", "~") + word.text[1:] if "tilde" in word.expansions else word.text


class _CommandFailedError(Exception):
    """A command that could not be started. The message is the one that a shell would print."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _check(line: CommandLine) -> None:
    """Check that the tool can run a command line.

    Raises:
        CommandError: the tool cannot run it.
    """
    if "&" in line.operators:
        raise CommandError("'&' is not supported: commands cannot run in the background; leave it out")
    for pipeline in line.pipelines:
        for command in pipeline.commands:
            alone = len(pipeline.commands) == 1
            if not alone and (not command.words or command.words[0].text == "cd"):
                raise CommandError("cd has no effect in a pipeline: write cd FOLDER && COMMAND")
            values = (assignment.value for assignment in command.assignments)
            targets = [redirect.target for redirect in command.redirects]
            for word in (*values, *command.words, *targets):
                _check_word(word)
            for target in targets:
                if "glob" in target.expansions:
                    raise CommandError(f"{target.raw!r:.80}: write the name of one file after < and >")


def _check_word(word: Word) -> None:
    shown = f"{word.raw!r:.80}"
    if "variable" in word.expansions:
        raise CommandError(f"{shown}: variables are not supported; write the value itself, or '$' in single quotes")
    if "brace" in word.expansions:
        raise CommandError(f"{shown}: braces are not expanded; write each word, or put it in single quotes")
    if "tilde" in word.expansions and not (word.raw == "~" or word.raw.startswith("~/")):
        raise CommandError(f"{shown}: only ~ and ~/... are supported; write the path itself")
