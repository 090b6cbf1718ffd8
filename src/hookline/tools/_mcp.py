"""Tools of MCP servers, listed and called over stdio or streamable HTTP."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import filterfalse, islice, pairwise
from typing import Any

from .._base.frozen import freeze, json_text, scrub, thaw
from .._base.text import describe, did_you_mean
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.values import ToolSpec
from ._tool import Checked, Tool
from .mcp_connection import Connection, Lost, McpError, Target

_MAX_NAME, _MAX_DEFAULT = 64, 40
_MAX_PROBLEMS = 5
_SCRIPTS = (".py", ".js", ".ts")
_RUNNERS = ("npx", "uvx")
_FLAGS = ("-y", "--yes", "-q", "--quiet", "-u")
_PYTHON_M = re.compile(r"(^|[\s/\\])(python|pypy|py)[\d.]*(\.exe)?( -\w+)* -m$")


def mcp(
    target: str | Sequence[str],
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    call_timeout: float | None = None,
    tools: str | Sequence[str] | None = None,
    prefix: str = "",
) -> McpServer:
    """The tools of an MCP server, for an agent's ``tools``: ``Agent(..., tools=[mcp("python server.py")])``.

    The server is started, or connected to, when its tools are first asked for (by the agent, when
    it is made), and kept for all calls of all agents that share it, until :meth:`McpServer.close` or
    the end of the program.

    A server that dies gives an error result for the calls it was working on, and is started again for
    the next call, once. Each call that it answers earns it another restart; if it dies without having
    answered one, or cannot be started again, it stays down, and calls say so. A lost HTTP session
    counts the same.

    Args:
        target: a command (split like a shell would, or a list), or the URL of a streamable HTTP server.
        name: how errors call it; if left out, its address, or the command and the script or package it runs.
        env: environment variables for the command; of yours, it gets only ``HOME``, ``PATH`` and the like.
        cwd: the folder that the command runs in.
        headers: HTTP headers, such as ``Authorization``.
        timeout: seconds that it may take to start and list its tools.
        call_timeout: seconds that a call may take; ``None`` for no limit, however long the server is silent.
        tools: globs of the tools to take; all if left out.
        prefix: put before the names of its tools, so that they do not clash with others.

    Raises:
        RegistrationError: arguments that cannot work.
    """
    import shlex
    from urllib.parse import urlsplit

    if isinstance(target, str) and re.match(r"https?://", target, re.IGNORECASE):
        command: tuple[str, ...] = ()
        url, parts = target, urlsplit(target)
        default = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # no password, no key
    else:
        try:
            command = tuple(shlex.split(target) if isinstance(target, str) else target)
        except ValueError as error:
            raise RegistrationError(f"mcp({target!r}): {error}; give a list, or mend the quotes") from None
        if not command or not all(isinstance(part, str) and part for part in command[:1]):
            raise RegistrationError(f"mcp({target!r}): expected a command or an http(s):// address")
        url, default = "", _default_name(command)
    for option, seconds in (("timeout", timeout), ("call_timeout", call_timeout)):
        if seconds is not None and not (isinstance(seconds, (int, float)) and seconds > 0):
            raise RegistrationError(f"mcp({target!r}): {option} must be a positive number of seconds")
    unused = {"headers": headers} if command else {"env": env, "cwd": cwd}
    for option, value in unused.items():
        if value is not None:
            raise RegistrationError(f"mcp({target!r}): {option} is for {'HTTP servers' if command else 'commands'}")
    folder = None if cwd is None else os.fspath(cwd)
    where = Target(name or default, command, url, env, folder, headers, float(timeout), call_timeout)
    wanted = (tools,) if isinstance(tools, str) else None if tools is None else tuple(tools)
    return McpServer(where, call_timeout, wanted, prefix)


class McpServer:
    """An MCP server as a set of tools; made by :func:`mcp`. ``with mcp(...) as server:`` closes it."""

    def __init__(self, target: Target, call_timeout: float | None, wanted: tuple[str, ...] | None, prefix: str) -> None:
        self.name = target.name
        self._target, self._call_timeout, self._wanted, self._prefix = target, call_timeout, wanted, prefix
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._tools: tuple[Tool, ...] = ()
        self._listed = self._closed = False
        self._may_restart = True

    def __repr__(self) -> str:
        return f"<MCP server {self.name}>"

    def __enter__(self) -> McpServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def tools(self) -> Sequence[Tool]:
        """Its tools. The first time this starts the server and blocks until it has listed them.

        Raises:
            McpError: the server cannot be started or reached, or is no MCP server.
            NotInstalledError: the package ``mcp`` is missing.
        """
        with self._lock:
            if not self._listed:
                self._tools, self._listed = tuple(self._made(self._connected().listing)), True
            return self._tools

    def close(self) -> None:
        """End the session and the server's process. Calls made later are errors."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()

    async def call(self, tool: str, arguments: Mapping[str, Any], ctx: Any = None) -> Any:
        """Call one of its tools by the server's own name for it, without hooks; from any event loop.

        Args:
            tool: its name.
            arguments: what it is called with.
            ctx: a tool call's context, for progress.

        Raises:
            McpError: the tool or the server failed.
        """
        connection = self._connection
        if connection is None or not connection.usable or self._closed:
            connection = await in_thread(self._connected)

        async def report(progress: float, total: float | None, message: str | None) -> None:
            fraction = progress / total if total else None
            ctx.progress(fraction if fraction is not None and 0 <= fraction <= 1 else None, message or "")

        try:
            result = await connection.call(tool, thaw(arguments), report if ctx is not None else None)
        except Lost as lost:
            raise McpError(f"the MCP server {self.name!r} is gone: {lost}. {self._prospect()}") from None
        except McpError:
            self._may_restart = True
            raise
        self._may_restart = True
        return _value(result)

    def _connected(self) -> Connection:
        with self._lock:
            if self._closed:
                raise McpError(f"the MCP server {self.name!r} is closed; make a new mcp(...)")
            last = self._connection
            if last is not None and last.usable:
                return last
            if last is not None:
                if not self._may_restart:
                    raise McpError(f"the MCP server {self.name!r} is down. {self._prospect()}")
                self._may_restart = False
            try:
                self._connection = Connection(self._target)
            except McpError as error:
                raise McpError(f"the MCP server {self.name!r} cannot be used: {error}") from None
            return self._connection

    def _prospect(self) -> str:
        if self._closed:
            return "Make a new mcp(...)."
        if self._may_restart:
            return "It is started again for the next call."
        return "It was started again already and stays down: find out why, then make a new mcp(...)."

    def _made(self, listing: Sequence[Any]) -> Iterator[Tool]:
        names = [listed.name for listed in listing]
        for glob in self._wanted or ():
            if not any(fnmatchcase(name, glob) for name in names):
                raise RegistrationError(
                    f"no tool of the MCP server {self.name!r} matches {glob!r}.{did_you_mean(glob, names)} "
                    f"It has: {', '.join(names) or 'none'}"
                )
        for listed in listing:
            if self._wanted is None or any(fnmatchcase(listed.name, glob) for glob in self._wanted):
                name = re.sub(r"[^A-Za-z0-9_.-]", "_", self._prefix + listed.name)[:_MAX_NAME] or "_"
                name = name if re.match(r"[A-Za-z_]", name) else f"_{name}"[:_MAX_NAME]
                yield McpTool(self, listed, name, self._call_timeout, self._target.cwd)


class McpTool(Tool):
    """A tool of an MCP server: its arguments are checked against the server's JSON schema.

    It is untrusted, as the server is somebody else's, and dangerous unless the server says that it only reads.
    """

    def __init__(self, server: McpServer, listed: Any, name: str, timeout: float | None, folder: str | None) -> None:
        async def run(ctx: Any = None, /, **arguments: Any) -> Any:
            return await server.call(listed.name, arguments, ctx)

        about = listed.description or listed.title or ""
        hints = listed.annotations
        harmless = hints is not None and hints.read_only_hint
        super().__init__(
            run, name=name, description=about, timeout=timeout, folder=folder, untrusted=True, dangerous=not harmless
        )
        self.server, self._theirs = server, listed.name
        self.__doc__ = about
        try:
            self.spec = ToolSpec(name, about, {"properties": {}, **scrub(listed.input_schema)})
        except (TypeError, ValueError) as error:
            raise RegistrationError(f"tool {name!r} of {server!r}: its schema is not usable: {error}") from error

    def validate(self, arguments: Mapping[str, Any]) -> Checked | str:
        """The arguments as they will be sent, or what is wrong with them in words."""
        try:
            checked = freeze(scrub(arguments))
            values = thaw(checked)
            problems = list(self._problems(values)) if self._checker is not None else []
        except Exception as error:  # noqa: BLE001 - a schema may do anything, such as point to nowhere
            return f"Invalid arguments for {self.name}: {describe(error):.200}"
        return f"Invalid arguments for {self.name}: {'; '.join(problems)}" if problems else Checked(checked, values)

    def call(self, values: Mapping[str, Any], ctx: Any) -> Awaitable[Any]:
        """Send the values of a :class:`Checked` to the server."""
        return self.server.call(self._theirs, values, ctx)

    @cached_property
    def _checker(self) -> Any:
        """Checks arguments; ``None`` if the schema is wrong itself: then the server has to."""
        from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]
        from jsonschema.validators import validator_for  # type: ignore[import-untyped]
        from referencing import Registry

        schema = thaw(self.spec.parameters)
        kind = validator_for(schema, default=Draft202012Validator)
        try:
            kind.check_schema(schema)
        except SchemaError:
            return None
        return kind(schema, registry=Registry())  # nothing is fetched

    def _problems(self, values: dict[str, Any]) -> Iterator[str]:
        from jsonschema.exceptions import best_match  # type: ignore[import-untyped]

        found = sorted(self._checker.iter_errors(values), key=lambda error: [str(part) for part in error.absolute_path])
        missing = False
        for error in found[:_MAX_PROBLEMS]:
            best = best_match([error])
            where = ".".join(str(part) for part in best.absolute_path)
            if best.validator == "required":
                missing = True
                lacking = next(name for name in best.validator_value if best.message.startswith(repr(name)))
                yield f"{where}.{lacking}: field required".lstrip(".")
            elif best.validator == "additionalProperties" and best.validator_value is False:
                known = best.schema.get("properties", {})
                unknown = [f"{where}.{name}".lstrip(".") for name in best.instance if name not in known]
                yield f"unknown: {', '.join(unknown)}; expected: {', '.join(known) or 'no arguments'}"
            else:
                yield f"{where}: {best.message:.200}" if where else f"{best.message:.200}"
        if missing:
            yield f"you sent: {', '.join(values) or 'no arguments'}"


def _default_name(command: Sequence[str]) -> str:
    """What a command runs, in short. Models read it, so it holds no word that may be an option's value."""
    from pathlib import PurePath

    program = PurePath(command[0].partition("=")[0]).name
    named = next(filter(_is_plain, _run_by(program, command)), "")
    return f"{program} {PurePath(named).name}".strip()[:_MAX_DEFAULT]


def _run_by(program: str, command: Sequence[str]) -> Iterator[str]:
    """The words that name the package, module or script that a command runs."""
    if program in _RUNNERS:
        yield from islice(filterfalse(_FLAGS.__contains__, command[1:]), 1)
        return
    for at, (before, word) in enumerate(pairwise(command), 1):
        is_script = word.endswith(_SCRIPTS) and (before in _FLAGS or not before.startswith("-"))
        if is_script or (before == "-m" and _PYTHON_M.search(" ".join(command[:at]))):
            yield word


def _is_plain(word: str) -> bool:
    return not word.startswith("-") and "=" not in word and "://" not in word and word.isprintable()


def _value(result: Any) -> Any:
    """What a result says, as text if it has any, else as structured data; what is neither, in words."""
    said = [_said(block) for block in result.content]
    text = "\n".join(part for part, _ in said)
    if result.is_error:
        raise McpError(text or "the tool failed and did not say why")
    if result.structured_content is None or any(is_text for _, is_text in said):
        return text
    return "\n".join([json_text(result.structured_content), text]) if text else result.structured_content


def _said(block: Any) -> tuple[str, bool]:
    """A block of content in words, and whether these are its own."""
    match block.type:
        case "text":
            return block.text, True
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {_size(block.data)} bytes]", False
        case "resource" if hasattr(block.resource, "text"):
            return block.resource.text, True
        case "resource":
            kind = block.resource.mime_type or "unknown type"
            return f"[file {block.resource.uri}: {kind}, {_size(block.resource.blob)} bytes]", False
        case _:
            return f"[link to {block.name}: {block.uri}]", False


def _size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")
