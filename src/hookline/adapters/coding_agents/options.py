"""The options of ``hookline agent-hook``, and what the command and its resident process must agree on.

Every call imports this module, without the packages of the installation and in little time. So it uses what is built
into Python: not even ``os`` and ``__future__``.
"""

import sys

if sys.platform == "win32" and "nt" in sys.builtin_module_names:
    import nt as system
else:
    import posix as system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

AGENTS = ("claude", "codex", "copilot", "cursor", "gemini", "opencode", "qwen")
"""The names for ``--agent``."""
MAX_INPUT = 64_000_000
"""Larger events are refused."""
BLOCKED = 2
"""The exit code that blocks. With others than this and 0, most agents run the call."""
STALE = 255
"""The answer of a resident process whose rules have changed: start another one."""
SECONDS, IDLE = 25.0, 1800.0

_VARIABLES = ("CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SESSION_ID", "CLAUDE_CONFIG_DIR")

_FOLDERS = ("CLAUDE_PROJECT_DIR", "GEMINI_PROJECT_DIR", "QWEN_PROJECT_DIR")
"""Variables with the folder of the project, in agents that set one."""


def environment() -> str:
    """Return what the environment of this call says about the agent that made it."""
    return "\0".join(map(variable, _VARIABLES))


def variable(name: str) -> str:
    """Return a variable of the environment; empty if it is not set."""
    if (loaded := sys.modules.get("os")) is not None:
        return str(loaded.environ.get(name, ""))
    return system.environ.get(name.encode(), b"").decode(sys.getfilesystemencoding(), "surrogateescape")


class Options:
    """The options of one call. Resident processes with other options are other processes.

    Args:
        agent: the coding agent.
        rules: files, modules and names of hooks.
        tools: changes of the map of tools.
        sandboxed: whether the agent runs commands in a sandbox.
        allow_rewritten: whether calls that hooks changed run without a question.
        seconds: the time for one answer. Agents let a call run if a hook takes too long, so this must be shorter than
            the time that they give it.
        idle: after this time without a call, the resident process ends.
        once: whether to answer without a resident process.
    """

    def __init__(
        self,
        agent: str,
        rules: "Sequence[str]",
        tools: "Sequence[str]" = (),
        *,
        sandboxed: bool = False,
        allow_rewritten: bool = False,
        seconds: float = SECONDS,
        idle: float = IDLE,
        once: bool = False,
    ) -> None:
        self.agent = agent
        self.folder = next(filter(None, map(variable, _FOLDERS)), None) or _working_folder()
        self.given, self.tools = list(rules), list(tools)
        """The rules as they were given, without the work of finding their paths, and the changes of tools."""
        self.sandboxed, self.allow_rewritten = sandboxed, allow_rewritten
        self.seconds, self.idle = seconds, idle
        self.once = once or not hasattr(system, "fork")

    @property
    def rules(self) -> list[str]:
        """The rules. A file has its absolute path. It is in the project: an agent may change the working folder."""
        return [self._absolute(each) for each in self.given]

    def _absolute(self, rule: str) -> str:
        import os

        name, colon, rest = rule.partition(":")
        is_file = name.endswith((".py", ".toml"))
        return f"{os.path.normpath(os.path.join(self.folder, name))}{colon}{rest}" if is_file else rule

    def identity(self) -> bytes:
        """Return what is the same for calls that one resident process may answer.

        This file tells the version and the installation of Hookline: each installation writes it anew.
        """
        own = system.stat(__file__)
        parts = (
            *(self.agent, self.folder, sys.executable, variable("PYTHONPATH")),
            *(own.st_dev, own.st_ino, own.st_size, own.st_mtime_ns),
            *(self.sandboxed, self.allow_rewritten, self.seconds, self.idle, len(self.given), *self.given, *self.tools),
        )
        return "\0".join(map(str, parts)).encode(sys.getfilesystemencoding(), "surrogateescape")


def _working_folder() -> str:
    try:
        return system.getcwd()
    except OSError:  # deleted or not readable: this is reported with the event, which must be blocked
        return ""


def parse(args: "Sequence[str]") -> Options | None:
    """Return the options of a call as a coding agent makes it; ``None`` if the full parser is needed.

    That is the case for ``--help``, for what only people use, and for mistakes, which the full parser explains.
    """
    agent = ""
    rules: list[str] = []
    tools: list[str] = []
    flags: dict[str, bool] = {}
    numbers: dict[str, float] = {}
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg in ("--sandboxed", "--allow-rewritten", "--once"):
            flags[arg[2:].replace("-", "_")] = True
        elif arg in ("--agent", "--tool", "--timeout", "--idle") and rest:
            value = rest.pop(0)
            if arg == "--agent":
                agent = value
            elif arg == "--tool":
                tools.append(value)
            elif not value.isdecimal() or int(value) == 0:
                return None
            else:
                numbers["seconds" if arg == "--timeout" else "idle"] = float(value)
        elif arg.startswith("-"):
            return None
        else:
            rules.append(arg)
    if not rules or agent not in AGENTS:
        return None
    return Options(agent, rules, tools, **flags, **numbers)  # type: ignore[arg-type]


def encode_answer(stdout: bytes, stderr: bytes, code: int) -> bytes:
    """Encode an answer for the socket. The lengths show whether it is complete."""
    return b"%d %d %d\n%b%b" % (code, len(stdout), len(stderr), stdout, stderr)


def decode_answer(message: bytes) -> tuple[bytes, bytes, int] | None:
    """Decode a message of :func:`encode_answer`; return ``None`` if it is not complete."""
    head, newline, rest = message.partition(b"\n")
    if not newline:
        return None
    code, out, err = map(int, head.split())
    return (rest[:out], rest[out:], code) if len(rest) == out + err else None


def encode_event(variables: str, data: bytes) -> bytes:
    """Return an event, and what the environment says about the agent that sent it, as the resident process reads it."""
    encoded = variables.encode("utf-8", "surrogateescape")
    return b"%d\n%b%b" % (len(encoded), encoded, data)


def decode_event(message: bytes) -> tuple[str, bytes]:
    """Decode a message of :func:`encode_event`."""
    length, _, rest = message.partition(b"\n")
    return rest[: int(length)].decode("utf-8", "surrogateescape"), rest[int(length) :]


class NoAnswerError(Exception):
    """The resident process cannot be started, or did not answer."""
