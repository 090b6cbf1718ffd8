"""Tools of MCP servers, over stdio or streamable HTTP."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import count, filterfalse, islice, pairwise, zip_longest
from typing import Any

from .._base.attachment import Attachment, AttachmentError, attachment_of_base64
from .._base.frozen import freeze, json_text, scrub, thaw
from .._base.own_files import OwnFile, register_own_file
from .._base.text import describe, did_you_mean
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.values import ToolSpec
from ._mcp_questions import DECLINED, MAX_QUESTIONS, ServerAnswer, ServerQuestion, ask_person
from ._tool import CheckedArguments, Effect, Tool
from .mcp_connection import Asker, ConnectionLostError, McpConnection, McpError, Progress, Target

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
    trusted: bool = False,
) -> McpServer:
    """Return the tools of an MCP server, for an agent's ``tools``.

    The server is started or connected to when its tools are first needed, which is when an agent is created. All agents
    that use it share one connection, until :meth:`McpServer.close` or the end of the program.

    If the server dies, its open calls fail, and the next call restarts it, once. Each answered call allows another
    restart. If the server dies without having answered a call, or cannot be restarted, it stays down and calls fail. A
    lost HTTP session is treated like a dead server.

    Args:
        target: a command (a string, split like in a shell, or a list), or the URL of a streamable HTTP server.
        name: the name in error messages; if omitted, the address, or the command and the script or package it runs.
        env: environment variables for the command; from yours it inherits only ``HOME``, ``PATH`` and the like.
        cwd: the folder in which the command runs.
        headers: HTTP headers, such as ``Authorization``.
        timeout: seconds that the server may take to start and list its tools.
        call_timeout: seconds that a call may take; ``None`` for no limit, even if the server sends nothing.
        tools: globs of the tools to use; all if omitted.
        prefix: a prefix for the names of the tools, to avoid name clashes.
        trusted: whether to use the server's statements about its tools (``readOnlyHint``, ``destructiveHint``,
            ``openWorldHint``). Otherwise its tools are undeclared: guards treat them as if they did everything.

    Raises:
        RegistrationError: an argument is invalid.

    Example::

        agent = Agent("bob", llm="local", tools=[mcp("python server.py", tools="read_*")])
    """
    import shlex
    from urllib.parse import urlsplit

    if isinstance(target, str) and re.match(r"https?://", target, re.IGNORECASE):
        command: tuple[str, ...] = ()
        url, parts = target, urlsplit(target)
        default = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # without password and query
    else:
        try:
            command = tuple(shlex.split(target) if isinstance(target, str) else target)
        except ValueError as error:
            raise RegistrationError(f"mcp({target!r}): {error}; pass a list, or fix the quotes") from None
        if not command or not all(isinstance(part, str) and part for part in command[:1]):
            raise RegistrationError(f"mcp({target!r}): expected a command or an http(s):// address")
        url, default = "", default_name(command)
    if not isinstance(trusted, bool):
        raise RegistrationError(f"mcp({target!r}): trusted must be True or False, not {trusted!r:.80}")
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
    return McpServer(where, call_timeout, wanted, prefix, trusted)


_IMPORTING = (".py", ".js", ".mjs", ".cjs", ".ts")
"""Scripts that search their own folder for modules, before all others."""


class McpServer:
    """An MCP server as a set of tools, created by :func:`mcp`. ``with mcp(...) as server:`` closes it."""

    def __init__(
        self,
        target: Target,
        call_timeout: float | None,
        wanted: tuple[str, ...] | None,
        prefix: str,
        trusted: bool = False,
    ) -> None:
        self.name, self.trusted = target.name, trusted
        self._target, self._call_timeout, self._wanted, self._prefix = target, call_timeout, wanted, prefix
        for word in target.command:
            script = os.path.join(target.cwd or os.getcwd(), word)
            if os.path.isfile(script):
                register_own_file(self, OwnFile(script, f"code of the MCP server {target.name}"))
            if os.path.isfile(script) and script.endswith(_IMPORTING):
                what = f"the folder from which the MCP server {target.name} imports code"
                register_own_file(self, OwnFile(os.path.dirname(script), what, is_folder=True, imported=True))
        self._lock = threading.RLock()
        self._connection: McpConnection | None = None
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
        """Return the tools of the server. The first call starts the server and blocks until it has listed them.

        Raises:
            McpError: the server cannot be started or reached, or is not an MCP server.
            NotInstalledError: the package ``mcp`` is missing.
        """
        with self._lock:
            if not self._listed:
                self._tools, self._listed = tuple(self._make_tools(self._connected().listing)), True
            return self._tools

    def close(self) -> None:
        """End the session and the server's process. Later calls fail."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()

    async def call(self, tool: str, arguments: Mapping[str, Any], ctx: Any = None) -> Any:
        """Call a tool by the server's own name for it, without hooks, from any event loop.

        Args:
            tool: the name of the tool.
            arguments: the arguments.
            ctx: the context of a tool call, for progress reports.

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
            if ctx is None:
                result = await connection.call(tool, thaw(arguments), None)
            else:
                result = await _call_with_questions(connection, tool, thaw(arguments), report, ctx)
        except ConnectionLostError as lost:
            raise McpError(f"the MCP server {self.name!r} is gone: {lost}. {self._restart_note()}") from None
        except McpError:
            self._may_restart = True
            raise
        self._may_restart = True
        return _result_value(result)

    def _connected(self) -> McpConnection:
        with self._lock:
            if self._closed:
                raise McpError(f"the MCP server {self.name!r} is closed; create a new mcp(...)")
            last = self._connection
            if last is not None and last.usable:
                return last
            if last is not None:
                if not self._may_restart:
                    raise McpError(f"the MCP server {self.name!r} is down. {self._restart_note()}")
                self._may_restart = False
            try:
                self._connection = McpConnection(self._target)
            except McpError as error:
                raise McpError(f"the MCP server {self.name!r} cannot be used: {error}") from None
            return self._connection

    def _restart_note(self) -> str:
        if self._closed:
            return "Create a new mcp(...)."
        if self._may_restart:
            return "The next call restarts it."
        return "It was already restarted and stays down: find out why, then create a new mcp(...)."

    def _make_tools(self, listing: Sequence[Any]) -> Iterator[Tool]:
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
    """A tool of an MCP server. Its arguments are checked against the server's JSON schema.

    Its effects are those that a trusted server states; otherwise it is undeclared.
    """

    def __init__(self, server: McpServer, listed: Any, name: str, timeout: float | None, folder: str | None) -> None:
        async def run(ctx: Any = None, /, **arguments: Any) -> Any:
            return await server.call(listed.name, arguments, ctx)

        about = listed.description or listed.title or ""
        effects = _effects(listed.annotations) if server.trusted else None
        harmless = effects is not None and effects.isdisjoint(("write", "delete"))
        super().__init__(
            run,
            name=name,
            description=about,
            timeout=timeout,
            folder=folder,
            effects=effects,
            dangerous=False if harmless else None,
        )
        self.server, self.remote_name = server, listed.name
        self.__doc__ = about
        try:
            self.spec = ToolSpec(name, about, {"properties": {}, **scrub(listed.input_schema)})
        except (TypeError, ValueError) as error:
            raise RegistrationError(f"tool {name!r} of {server!r}: its schema is not usable: {error}") from error

    def validate(self, arguments: Mapping[str, Any]) -> CheckedArguments | str:
        """Return the arguments to send, or a text that says what is wrong with them."""
        try:
            checked = freeze(arguments)
            values = thaw(checked)
            problems = list(self._problems(values)) if self._checker is not None else []
        except Exception as error:  # noqa: BLE001 - a schema may be broken in many ways, such as a dangling reference
            return f"Invalid arguments for {self.name}: {describe(error):.200}"
        return (
            f"Invalid arguments for {self.name}: {'; '.join(problems)}"
            if problems
            else CheckedArguments.of(self.name, checked, values)
        )

    async def call(self, values: Mapping[str, Any], ctx: Any) -> Any:
        """Send the values of :class:`CheckedArguments` to the server."""
        return await self.server.call(self.remote_name, values, ctx)

    @cached_property
    def _checker(self) -> Any:
        """The validator for arguments; ``None`` if the schema itself is invalid. Then only the server checks them."""
        from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]
        from jsonschema.validators import validator_for  # type: ignore[import-untyped]
        from referencing import Registry

        schema = thaw(self.spec.parameters)
        kind = validator_for(schema, default=Draft202012Validator)
        try:
            kind.check_schema(schema)
        except SchemaError:
            return None
        return kind(schema, registry=Registry())  # references are not downloaded

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


async def _call_with_questions(
    connection: McpConnection, tool: str, arguments: dict[str, Any], report: Progress, ctx: Any
) -> Any:
    """Call a tool. The questions of the server are asked here, in the task and the event loop of the tool call.

    Raises:
        McpError: the server asked too often, or the call failed.
    """
    loop, numbers, too_many = asyncio.get_running_loop(), count(1), asyncio.Event()
    asked: asyncio.Queue[tuple[ServerQuestion, concurrent.futures.Future[ServerAnswer]]] = asyncio.Queue()

    async def ask(question: ServerQuestion) -> ServerAnswer:
        if next(numbers) > MAX_QUESTIONS:
            loop.call_soon_threadsafe(too_many.set)
            return DECLINED
        answer: concurrent.futures.Future[ServerAnswer] = concurrent.futures.Future()
        loop.call_soon_threadsafe(asked.put_nowait, (question, answer))
        return await asyncio.wrap_future(answer)

    async def answer_questions() -> None:
        while True:
            question, answer = await asked.get()
            try:
                answer.set_result(await ask_person(ctx, question))
            except Exception as error:  # noqa: BLE001 - the connection logs it and declines
                answer.set_exception(error)
            except BaseException:
                answer.cancel()
                raise

    calling = asyncio.ensure_future(connection.call(tool, arguments, report, Asker(str(ctx.run_id), ask)))
    flooded = asyncio.ensure_future(too_many.wait())
    tasks = (calling, flooded, asyncio.ensure_future(answer_questions()))
    try:
        await asyncio.wait((calling, flooded), return_when=asyncio.FIRST_COMPLETED)
        if flooded.done():
            raise McpError(
                f"the MCP server {connection.target.name!r} asked more than {MAX_QUESTIONS} questions in this call, "
                "which ended it"
            )
        return calling.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        while not asked.empty():
            asked.get_nowait()[1].cancel()


def _effects(hints: Any) -> frozenset[Effect]:
    """Return the effects that a server states. By the defaults of MCP, a tool may do harm."""

    def stated(hint: str, default: bool) -> bool:
        value = getattr(hints, hint, None)
        return default if value is None else bool(value)

    found: set[Effect] = {"read"}
    if not stated("read_only_hint", False):
        found.add("write")
        if stated("destructive_hint", True):
            found.add("delete")
    if stated("open_world_hint", True):
        found.add("network")
    return frozenset(found)


def default_name(command: Sequence[str]) -> str:
    """Return a short name for a command. Models read it, so it contains no word that may be an option's value."""
    from pathlib import PurePath

    program = PurePath(command[0].partition("=")[0]).name
    named = next(filter(_is_plain, _named_words(program, command)), "")
    return f"{program} {PurePath(named).name}".strip()[:_MAX_DEFAULT]


def _named_words(program: str, command: Sequence[str]) -> Iterator[str]:
    """Yield the words that name the package, module or script that a command runs."""
    if program in _RUNNERS:
        yield from islice(filterfalse(_FLAGS.__contains__, command[1:]), 1)
        return
    for at, (before, word) in enumerate(pairwise(command), 1):
        is_script = word.endswith(_SCRIPTS) and (before in _FLAGS or not before.startswith("-"))
        if is_script or (before == "-m" and _PYTHON_M.search(" ".join(command[:at]))):
            yield word


def _is_plain(word: str) -> bool:
    return not word.startswith("-") and "=" not in word and "://" not in word and word.isprintable()


def _result_value(result: Any) -> Any:
    """Return the text of a result, or its structured data if it has no text; with attachments, a list of both.

    Other content is described in words.
    """
    files = [] if result.is_error else [_attachment(block) for block in result.content]
    rest = [block for block, file in zip_longest(result.content, files) if file is None]
    attachments = [file for file in files if file is not None]
    blocks = [_block_text(block) for block in rest]
    text = "\n".join(part for part, _ in blocks)
    if result.is_error:
        raise McpError(text or "the tool failed without a message")
    value: Any = text
    if result.structured_content is not None and not any(is_text for _, is_text in blocks):
        value = "\n".join([json_text(result.structured_content), text]) if text else result.structured_content
    return [*([value] if value else []), *attachments] if attachments else value


_ATTACHED = ("image/", "audio/", "application/pdf")
"""The types of files that a model may take. Others are described in words, and so is text in the form of a file:
guards look for attacks in the text of a result."""


def _attachment(block: Any) -> Attachment | None:
    """Return the file in a content block; ``None`` if there is none, or if it is not what the server says."""
    held = block.resource if block.type == "resource" else block
    data = getattr(held, "blob", None) if block.type == "resource" else getattr(held, "data", None)
    if not isinstance(data, str) or not str(held.mime_type).startswith(_ATTACHED):
        return None
    name = str(getattr(held, "uri", "") or "")
    try:
        return attachment_of_base64(data, held.mime_type, name, "content", max_size=None)
    except (TypeError, AttachmentError):
        return None


def _block_text(block: Any) -> tuple[str, bool]:
    """Return the text of a content block, and whether it is the block's own text rather than a description."""
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
