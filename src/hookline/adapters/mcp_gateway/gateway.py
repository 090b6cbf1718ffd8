"""The messages between one client and one server: most pass, calls are judged.

Messages go in both directions, in any order, with any number of calls in flight. The ids of requests stay those of the
client; those of the gateway itself begin with ``hookline-``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from ..._base.frozen import json_text
from ..._base.text import describe, printable
from ..._kernel.errors import HooklineError
from ..._kernel.hook_code import verbs_of
from ..._kernel.payloads import ApprovalRequest, ToolCallRequest, ToolCallResult
from ..._kernel.points import AFTER_TOOL, APPROVAL_REQUESTED, BEFORE_TOOL
from ..._kernel.registry import HookStack
from ..._kernel.results import HookResult
from ...tools._mcp_questions import is_web_address
from ...tools._tool import WithAttachments
from .catalog import APPROVE_TOOLS, Catalog, hook_name
from .content import (
    Reading,
    is_unchanged,
    read_prompt,
    read_resource,
    read_tool_result,
    value_of_answer,
    write_answer,
    write_prompt,
    write_resource,
    write_tool_result,
)
from .protocol import (
    CAPABILITIES,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    REFUSED,
    VERSION,
    Message,
    MessageError,
    check_keys,
    decode,
    encode,
    error_of,
    id_key,
    is_id,
    meta_of,
    result_of,
)
from .run import RefusedError, ServerError, SessionRun

log = logging.getLogger("hookline")

Send = Callable[[bytes], Awaitable[None]]

JUDGED = {"tools/call": "", "resources/read": "read_resource", "prompts/get": "get_prompt"}
"""The requests of clients that hooks judge, and the names of the tools that they are for hooks."""
ASKED = {"sampling/createMessage": "sampling", "elicitation/create": "elicitation"}
"""The requests of servers that hooks judge, and the names of the tools that they are for hooks."""
MARK = "hookline:"
LEG_SECONDS = 1800.0
"""Seconds in which a client of the stateless protocol must return with an answer."""
MAX_OPEN = 10_000
MAX_QUESTIONS = 20
"""Maximum number of requests that a server may make while the calls of its client are in flight, for each call."""
_SECRETS = ("password", "passwd", "passphrase", "secret", "api_key", "apikey", "token", "credential", "private_key")


class ServerGoneError(ServerError):
    """The server has ended, so a call has no answer."""


class Request:
    """A request of the client that waits for its response."""

    def __init__(self, message: Message, line: bytes, declared: Mapping[str, Any] | None = None) -> None:
        self.ident: Any = message["id"]
        self.message, self.line = message, line
        self.method: str = message["method"]
        self.params: Message = message.get("params") or {}
        self.response: asyncio.Future[tuple[Message, bytes]] | None = None
        """The response of the server, if the call is in flight there."""
        self.task: asyncio.Task[None] | None = None
        self.questions = 0
        self.call_id = ""
        self.name = ""
        """The name under which hooks see it."""
        self.refusal: str | None = None
        meta = meta_of(self.params)
        self.modern = VERSION in meta or declared is not None
        """Whether the client uses the stateless protocol."""
        declared = meta.get(CAPABILITIES) if declared is None else declared
        self.capabilities: Mapping[str, Any] = declared if isinstance(declared, Mapping) else {}


class Gateway:
    """The messages between one client and one server.

    Args:
        server: the name of the server, for people.
        catalog: the tools of the server, and what was approved.
        run: the run of the client's session.
        calls: the calls in flight of all gateways, for :class:`ClientApprover` and :class:`PinGuard`; without a
            request for a question of the gateway itself.
        to_client: sends a message to the client.
        to_server: sends a message to the server.
        prefix: what is put before the names of tools and prompts, for hooks.
    """

    def __init__(
        self,
        server: str,
        catalog: Catalog,
        run: SessionRun,
        calls: dict[str, tuple[Gateway, Request | None]],
        to_client: Send,
        to_server: Send,
        hooks: Callable[[], HookStack],
        prefix: str = "",
    ) -> None:
        self.server, self.catalog, self.prefix = server, catalog, prefix
        self._run, self._calls = run, calls
        self._to_client, self._to_server = to_client, to_server
        self._hooks = hooks
        self._open: dict[Any, Request] = {}
        """The requests of the client, by id."""
        self._at_server: dict[Any, Request] = {}
        """The requests that the server has not answered yet, by the id that it knows."""
        self._own: dict[str, asyncio.Future[Message]] = {}
        """The requests of the gateway, to either side, by id."""
        self._asked: dict[Any, asyncio.Future[tuple[Message, bytes]] | None] = {}
        """The requests of the server, by id; with a future if the answer is judged."""
        self._legs: dict[str, tuple[Request, asyncio.Future[Message]]] = {}
        """Calls of the stateless protocol whose client must return with an answer, by the state it got."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._capabilities: Mapping[str, Any] = {}
        self._meta: Mapping[str, Any] = {}
        self._closed = ""
        self._oddities = 0
        catalog.ask = self._begin_asking

    # From the client.

    async def from_client(self, line: bytes, declared: Mapping[str, Any] | None = None) -> None:
        """Take a message of the client.

        Args:
            line: the message.
            declared: the capabilities of a client of the stateless protocol whose server has the other.
        """
        try:
            message = decode(line)
            method = message.get("method")
            if method is None:
                await self._answer_from_client(message, line)
            elif not isinstance(method, str) or not isinstance(message.get("params", {}), dict):
                raise MessageError(INVALID_REQUEST, "this is not a JSON-RPC request")
            elif "id" not in message:
                await self._notification_from_client(message, line)
            else:
                await self._request_from_client(Request(message, line, declared))
        except MessageError as error:
            ident = _id_in(line)
            await self._to_client(encode(error_of(ident, error.code, str(error))))

    async def _request_from_client(self, request: Request) -> None:
        key = id_key(request.ident)
        if not is_id(request.ident) or key in self._open or key in self._at_server or request.ident in self._own:
            raise MessageError(INVALID_REQUEST, "a request with this id is in flight")
        if len(self._open) >= MAX_OPEN:
            raise MessageError(REFUSED, "too many requests are in flight")
        if VERSION in meta_of(request.params):
            self._meta = {name: each for name, each in meta_of(request.params).items() if name != "progressToken"}
        method, params = request.method, request.params
        if method.startswith("tasks/") or (method in JUDGED and "task" in params):
            raise MessageError(METHOD_NOT_FOUND, "tasks are not supported by this gateway: their results are not seen")
        if method in JUDGED:
            check_keys(params)
            state = params.get("requestState")
            if isinstance(state, str) and state.startswith(MARK):
                await self._resume(request, state)
                return
            self._open[key] = request
            request.task = self._spawn(self._judge(request))
            return
        if method == "initialize":
            declared = params.get("capabilities")
            self._capabilities = declared if isinstance(declared, Mapping) else {}
            client = params.get("clientInfo")
            name = client.get("name") if isinstance(client, Mapping) else None
            self._run.task = f"A session of {printable(str(name or 'an MCP client'), keep='')[:80]} with {self.server}"
            if "tasks" in self._capabilities:
                plain = {name: each for name, each in self._capabilities.items() if name != "tasks"}
                request.line = encode({**request.message, "params": {**params, "capabilities": plain}})
        if method == "tools/list":
            self._open[key] = request
            request.task = self._spawn(self._list(request))
            return
        self._open[key] = request
        await self._send_to_server(request.line)

    async def _notification_from_client(self, message: Message, line: bytes) -> None:
        method, params = message["method"], message.get("params") or {}
        if method in JUDGED or method.startswith("tasks/"):
            return  # a call that nobody could answer must not reach the server
        if method == "notifications/cancelled":
            request = self._open.get(id_key(params.get("requestId")))
            if request is None:
                return
            if request.task is not None:
                self._open.pop(id_key(request.ident), None)
                if request.response is not None:
                    await self._send_to_server(line)
                request.response = None
                request.task.cancel()
                return
            self._open.pop(id_key(request.ident), None)
        await self._send_to_server(line)

    async def _answer_from_client(self, message: Message, line: bytes) -> None:
        ident = message.get("id")
        if isinstance(ident, str) and ident in self._own:
            own = self._own.pop(ident)
            if not own.done():
                own.set_result(message)
            return
        key = id_key(ident)
        if key not in self._asked:
            return  # nobody has asked
        future = self._asked.pop(key)
        if future is None:
            await self._send_to_server(line)
        elif not future.done():
            future.set_result((message, line))

    # Lists of tools.

    async def _list(self, request: Request) -> None:
        try:
            await self._ensure_listed()
            message, line = await self._ask_server(request, request.line)
            result = message.get("result")
            if isinstance(result, dict) and isinstance(result.get("tools"), list):
                without = self._may_change_results()
                tools = self.catalog.visible(result["tools"], without_schema=without)
                self._run.learn(self.catalog.specs(tools))
                if tools != result["tools"]:
                    line = encode({**message, "result": {**result, "tools": tools}})
            await self._respond(request, line)
        except ServerError as error:
            await self._respond(request, encode(error_of(request.ident, REFUSED, str(error))))
        except Exception as error:  # a client must not wait for ever
            log.exception("a list of tools")
            await self._respond(request, encode(error_of(request.ident, REFUSED, f"not listed: {describe(error)}")))

    async def _ensure_listed(self) -> None:
        if not self.catalog.complete:
            await self.catalog.ensure(self._list_page)

    async def _list_page(self, cursor: str | None) -> Message:
        params: Message = {} if cursor is None else {"cursor": cursor}
        if self._meta:
            params["_meta"] = dict(self._meta)
        answer = await self._own_request(self._send_to_server, "tools/list", params)
        result = answer.get("result")
        return result if isinstance(result, dict) else {}

    def _may_change_results(self) -> bool:
        """Whether a hook may write results of tools, which then need not fit the tool's ``outputSchema``."""
        hooks = self._hooks()
        if any(entry.phase != "observe" for entry in hooks.entries(AFTER_TOOL)):
            return True
        return any(
            entry.phase != "observe" and "answer" in verbs_of(entry.hook, entry.point)
            for entry in hooks.entries(BEFORE_TOOL)
        )

    # Calls.

    async def _judge(self, request: Request) -> None:
        """Answer a call."""
        request.call_id = self._run.new_id()
        self._calls[request.call_id] = self, request
        try:
            line = await self._judged(request)
        except RefusedError as refused:
            line = self._refused(request, str(refused))
        except HooklineError as error:
            log.error("a call of the MCP server %s: %s", self.server, describe(error))
            line = self._refused(request, f"Not run: {type(error).__name__}")
        except Exception:  # a call that cannot be judged is refused
            log.exception("a call of the MCP server %s", self.server)
            line = self._refused(request, "Not run: the call could not be judged.")
        finally:
            del self._calls[request.call_id]
        await self._respond(request, line)

    async def _judged(self, request: Request) -> bytes:
        params, method = request.params, request.method
        if method == "resources/read":
            name, arguments = JUDGED[method], {"uri": params.get("uri")}
            valid = isinstance(params.get("uri"), str)
        else:
            given = params.get("arguments")
            arguments = {} if given is None else given
            name = str(params.get("name"))
            valid = isinstance(params.get("name"), str) and isinstance(arguments, dict)
            if method == "prompts/get":
                name, arguments = JUDGED[method], {"name": f"{self.prefix}{name}", "arguments": arguments}
        if not valid:
            return encode(error_of(request.ident, INVALID_PARAMS, f"the parameters of {method} are invalid"))
        if method == "tools/call":
            await self._ensure_listed()
            request.refusal = self.catalog.refusal(name)
            if request.refusal is not None and self.catalog.complete:
                self.catalog.complete = False  # the list may be old
                await self._ensure_listed()
                request.refusal = self.catalog.refusal(name)
            name = hook_name(self.prefix, name)
        request.name = name
        last: list[tuple[Reading, bytes]] = []
        try:
            settled = await self._run.call(
                request.call_id, name, arguments, lambda tool, changed: self._execute(request, tool, changed, last)
            )
        except ServerError:
            if not last:
                raise RefusedError("The server has ended, so there is no result.") from None
            return last[-1][1]
        if last and is_unchanged(last[-1][0], settled):
            return last[-1][1]
        return self._changed(request, settled, last[-1][0] if last else None)

    async def _execute(
        self, request: Request, name: str, changed: Mapping[str, Any] | None, last: list[tuple[Reading, bytes]]
    ) -> Any:
        """Have the server make a call, as it was judged. Remember the result as it arrived.

        Raises:
            ServerError: the server answered with an error.
            RefusedError: what it answered cannot be judged.
        """
        del last[:]
        params = dict(request.params)
        if name != request.name and request.method != "tools/call":
            raise RefusedError(f"Not run: {request.name} cannot become {name}.")
        if changed is not None:
            if request.method == "tools/call":
                params |= {"name": self.catalog.remote_name(name), "arguments": dict(changed)}
            elif request.method == "resources/read":
                params |= {"uri": changed.get("uri")}
            else:
                prompt = str(changed.get("name")).removeprefix(self.prefix)
                params |= {"name": prompt, "arguments": changed.get("arguments") or {}}
        line = request.line if changed is None and params == request.params else None
        for _ in range(MAX_QUESTIONS):
            if line is None or request.ident != request.message["id"]:
                line = encode({**request.message, "id": request.ident, "params": params})
            message, line = await self._ask_server(request, line)
            if message["id"] != request.ident:  # the client returned with an answer in the meantime
                message = {**message, "id": request.ident}
                line = encode(message)
            result = message.get("result")
            if not isinstance(result, dict) or result.get("resultType") != "input_required" or not request.modern:
                break
            answers = await self._answer_inputs(request, result.get("inputRequests"))
            params = {**params, "inputResponses": answers}
            params.pop("requestState", None)
            if "requestState" in result:
                params["requestState"] = result["requestState"]
            line = None
        else:
            raise RefusedError(f"The server asked more than {MAX_QUESTIONS} times in this call, which ended it.")
        assert line is not None
        return self._read(request, message, line, last)

    def _read(self, request: Request, message: Message, line: bytes, last: list[tuple[Reading, bytes]]) -> Any:
        result = message.get("result")
        if not isinstance(result, dict):
            error = message.get("error")
            if not isinstance(error, dict) or "result" in message:
                raise RefusedError("The server's result is invalid, so it is withheld.")
            parts = [str(error.get("message") or "an error without a message")]
            parts += [json_text(error["data"])] if error.get("data") is not None else []
            last.append((Reading(""), line))
            raise ServerError("\n".join(parts))
        if request.method == "tools/call":
            reading = read_tool_result(result)
        elif request.method == "resources/read":
            reading = read_resource(result)
        else:
            reading = read_prompt(result)
        last.append((reading, line))
        if reading.failed:
            raise ServerError(reading.value)
        return WithAttachments(reading.value, reading.attachments) if reading.attachments else reading.value

    def _changed(self, request: Request, settled: ToolCallResult, reading: Reading | None) -> bytes:
        """Return the response that hooks made."""
        if settled.error is not None:
            return self._refused(request, settled.error)
        if request.method == "tools/call":
            result = write_tool_result(settled, reading)
            if "structuredContent" not in result and str(request.params.get("name")) in self.catalog.with_schema:
                text = "The result is withheld: a hook changed it, and the tool promises a structured result."
                return self._refused(request, text)
        elif request.method == "resources/read":
            result = write_resource(settled, reading, str(request.params.get("uri")))
        else:
            result = write_prompt(settled)
        return encode(result_of(request.ident, result, modern=request.modern))

    def _refused(self, request: Request, text: str) -> bytes:
        """Return the response that says why there is no result. A model reads it, if the protocol allows that."""
        if request.method != "tools/call":
            return encode(error_of(request.ident, REFUSED, text))
        result = {"content": [{"type": "text", "text": text}], "isError": True}
        return encode(result_of(request.ident, result, modern=request.modern))

    async def _ask_server(self, request: Request, line: bytes) -> tuple[Message, bytes]:
        """Send a request, and return its response.

        Raises:
            ServerGoneError: the server has ended.
        """
        if self._closed:
            raise ServerGoneError(self._closed)
        future: asyncio.Future[tuple[Message, bytes]] = asyncio.get_running_loop().create_future()
        request.response = future
        ident = request.ident
        self._at_server[id_key(ident)] = request
        try:
            await self._send_to_server(line)
            return await future
        except asyncio.CancelledError:
            if request.response is future:  # a hook or a limit ended the call: the server need not go on
                cancelled = {"requestId": ident, "reason": "the call was given up"}
                note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}
                self._spawn(self._send_to_server(encode(note)))
            raise
        finally:
            del self._at_server[id_key(ident)]
            request.response = None

    async def _respond(self, request: Request, line: bytes) -> None:
        key = id_key(request.ident)
        if self._open.get(key) is request:  # otherwise it was cancelled, or waits for the client to return
            del self._open[key]
            await self._to_client(line)

    # Questions of the gateway.

    def _begin_asking(self, names: list[str]) -> None:
        self._spawn(self._ask_about(names))

    async def _ask_about(self, names: list[str]) -> None:
        """Ask the approvers, but not the client, whether tools may be used as they are now.

        It is a call of the run, so that it is seen wherever calls are seen, with the difference as its arguments.
        """
        shown, digests = self.catalog.waiting(names)
        ident = self._run.new_id()

        async def execute(name: str, changed: Mapping[str, Any] | None) -> str:
            self.catalog.approve(digests, "an approver of the session")
            await self._to_client(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
            return "approved"

        self._calls[ident] = self, None
        try:
            await self._run.call(ident, APPROVE_TOOLS, {"server": self.server, "differences": shown}, execute)
        except HooklineError as error:
            log.warning("nobody was asked about tools of %s: %s", self.server, error)
        finally:
            del self._calls[ident]

    async def approve(self, request: Request, asked: ApprovalRequest) -> HookResult | None:
        """Ask the user of the client about a call; ``None`` if the client cannot ask."""
        if "elicitation" not in (request.capabilities if request.modern else self._capabilities):
            return None
        about = [question.text for question in asked.questions]
        arguments = json.dumps(asked.call.arguments, ensure_ascii=False, default=str)
        text = printable("\n".join([*about, "", f"{asked.call.name} of {self.server}: {arguments}"]))
        schema = {
            "type": "object",
            "properties": {"run": {"type": "boolean", "title": "Run it", "default": False}},
            "required": ["run"],
        }
        params = {"mode": "form", "message": text, "requestedSchema": schema}
        if not request.modern:
            params.pop("mode")
            answer = (await self._own_request(self._to_client, "elicitation/create", params)).get("result")
        else:
            asks = {"hookline_approval": {"method": "elicitation/create", "params": params}}
            answer = (await self._leg(request, asks)).get("hookline_approval")
        content = answer.get("content") if isinstance(answer, dict) else None
        accepted = isinstance(answer, dict) and answer.get("action") == "accept"
        if accepted and isinstance(content, dict) and content.get("run") is True:
            return HookResult.approve(by="the user of the MCP client")
        return HookResult.deny("The user denied this call.", by="the user of the MCP client")

    async def _leg(self, request: Request, asks: Mapping[str, Any]) -> Message:
        """Have the client of the stateless protocol answer, and send its request again.

        The state that it brings back is a random handle, used once, of this very call. So nothing that a client sends
        can make an approval of another call out of it.
        """
        state = MARK + secrets.token_urlsafe(32)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._legs[state] = request, future
        self._open.pop(id_key(request.ident), None)
        result = {"resultType": "input_required", "inputRequests": dict(asks), "requestState": state}
        await self._to_client(encode({"jsonrpc": "2.0", "id": request.ident, "result": result}))
        try:
            async with asyncio.timeout(LEG_SECONDS):
                return await future
        except TimeoutError:
            raise RefusedError("Not run: nobody answered in time.") from None
        finally:
            self._legs.pop(state, None)

    async def _resume(self, again: Request, state: str) -> None:
        """Continue a call whose client has returned with an answer."""
        request, future = self._legs.pop(state, (None, None))
        same = request is not None and all(
            encode({"": request.params.get(key)}) == encode({"": again.params.get(key)})
            for key in ("name", "arguments", "uri")
        )
        answers = again.params.get("inputResponses")
        if request is None or future is None or not same or again.method != request.method or future.done():
            await self._to_client(self._refused(again, "Not run: this answer is for another call, or came too late."))
            if future is not None and not future.done():
                future.set_result({})  # the state was shown, so it is used up
            return
        request.ident = again.ident
        self._open[id_key(again.ident)] = request
        future.set_result(answers if isinstance(answers, dict) else {})

    async def _own_request(self, send: Send, method: str, params: Mapping[str, Any]) -> Message:
        """Send a request of our own, and return the response."""
        if self._closed:
            raise ServerGoneError(self._closed)
        ident = f"hookline-{secrets.token_hex(8)}"
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._own[ident] = future
        try:
            await send(encode({"jsonrpc": "2.0", "id": ident, "method": method, "params": params}))
            return await future
        except asyncio.CancelledError:
            cancelled = {"requestId": ident, "reason": "no longer needed"}
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}
            self._spawn(send(encode(note)))
            raise
        finally:
            self._own.pop(ident, None)

    # Questions of the server.

    async def _answer_inputs(self, request: Request, asks: Any) -> Message:
        """Judge what a server of the stateless protocol wants to know in a call, and have the client answer it."""
        if (
            not isinstance(asks, dict)
            or len(asks) > MAX_QUESTIONS
            or not all(isinstance(each, dict) and isinstance(each.get("params", {}), dict) for each in asks.values())
        ):
            raise RefusedError("The server's questions are invalid, so the call was ended.")
        loop = asyncio.get_running_loop()
        passed: Message = {}
        answers: dict[str, asyncio.Future[Any]] = {}
        ready = {key: loop.create_future() for key in asks}

        async def judged(key: str, method: str, params: Message) -> Any:
            async def relay(shown: Message) -> Any:
                passed[key] = {"method": method, "params": shown}
                answers[key] = loop.create_future()
                ready[key].set_result(None)
                return await answers[key]

            try:
                return await self._judge_question(method, params, relay)
            finally:
                if not ready[key].done():
                    ready[key].set_result(None)

        tasks: dict[str, asyncio.Task[Any]] = {}
        for key, ask in asks.items():
            method, params = ask.get("method"), ask.get("params") or {}
            if method in ASKED:
                tasks[key] = self._spawn(judged(key, method, params))
            elif method == "roots/list":
                passed[key] = ask
                ready[key].set_result(None)
            else:
                raise RefusedError("The server's questions are invalid, so the call was ended.")
        try:
            await asyncio.gather(*ready.values())
            given = await self._leg(request, passed) if passed else {}
            for key, future in answers.items():
                future.set_result(given.get(key) or {"action": "cancel"})
            found: Message = {key: given.get(key) for key in passed if key not in tasks}
            for key, task in tasks.items():
                try:
                    found[key] = await task
                except RefusedError:
                    if asks[key]["method"] != "elicitation/create":
                        raise
                    found[key] = {"action": "decline"}
            return found
        finally:
            for task in tasks.values():
                task.cancel()

    async def _judge_question(self, method: str, params: Message, relay: Callable[[Message], Awaitable[Any]]) -> Any:
        """Let the hooks judge a question of the server and its answer. Return the answer for the server.

        Raises:
            RefusedError: it must not be asked.
        """
        shown = {name: each for name, each in params.items() if name != "_meta"}
        if method == "elicitation/create":
            shown = self._marked(shown)

        got: list[Any] = []

        async def execute(name: str, changed: Mapping[str, Any] | None) -> Any:
            asked = shown if changed is None else {key: each for key, each in changed.items() if key != "server"}
            got[:] = [await relay({**params, **asked})]
            return value_of_answer(got[0])

        arguments = {"server": self.server, **shown}
        settled = await self._run.call(self._run.new_id(), ASKED[method], arguments, execute)
        if settled.error is not None:
            raise RefusedError(settled.error)
        return write_answer(settled, got[0] if got else None)

    def _marked(self, params: Message) -> Message:
        """Return an elicitation with the name of the server that asks.

        Raises:
            RefusedError: it asks for what a server must not ask for.
        """
        message = printable(str(params.get("message", "")))
        url = params.get("url")
        if url is not None and not is_web_address(str(url)):
            raise RefusedError("a server may ask people to open pages of the web only")
        schema = params.get("requestedSchema")
        fields = schema.get("properties") if isinstance(schema, Mapping) else None
        for name in fields if isinstance(fields, Mapping) else ():
            if any(word in str(name).casefold().replace("-", "_") for word in _SECRETS):
                raise RefusedError("a server must not ask for secrets in a form")
        return {**params, "message": f"The MCP server {self.server!r} asks: {message}"}

    async def _request_from_server(self, message: Message, line: bytes) -> None:
        ident, method = message["id"], message["method"]
        key = id_key(ident)
        params = message.get("params") or {}
        answer: Message | None = None
        asking = Request({"id": 0, "method": method}, line)
        if not is_id(ident) or key in self._asked or not isinstance(params, dict):
            answer = error_of(ident if is_id(ident) else None, INVALID_REQUEST, "invalid, or this id is in flight")
        elif method == "ping":
            answer = result_of(ident, {})
        elif method == "roots/list" and "roots" in self._capabilities:
            if len(self._asked) < MAX_OPEN:
                self._asked[key] = None
                await self._to_client(line)
                return
            answer = error_of(ident, REFUSED, "too many requests")
        elif method not in ASKED or ASKED[method] not in self._capabilities:
            answer = error_of(ident, METHOD_NOT_FOUND, f"{method:.80} is not supported")
        else:
            open_calls = list(self._at_server.values())
            if not open_calls:
                answer = error_of(ident, REFUSED, "there is no call in flight that this could belong to")
            elif all(each.questions >= MAX_QUESTIONS for each in open_calls):
                answer = error_of(ident, REFUSED, "too many questions")
            else:
                asking = min(open_calls, key=lambda each: each.questions)
                asking.questions += 1
        if answer is not None:
            await self._send_to_server(encode(answer))
            return
        self._asked[key] = asyncio.get_running_loop().create_future()
        self._spawn(self._answer_question(message, key, asking))

    async def _answer_question(self, message: Message, key: Any, asking: Request) -> None:
        """Have the client answer a request of the server, if the hooks allow it."""
        ident, method = message["id"], message["method"]
        future = self._asked[key]
        assert future is not None

        async def relay(shown: Message) -> Any:
            if asking.modern:
                answers = await self._leg(asking, {"question": {"method": method, "params": shown}})
                return answers.get("question") or {"action": "cancel"}
            await self._to_client(encode({**message, "params": shown}))
            answer, _ = await future
            if "result" not in answer:
                error = answer.get("error")
                raise ServerError(str(error.get("message") if isinstance(error, dict) else "no result"))
            return answer["result"]

        try:
            result = await self._judge_question(method, message.get("params") or {}, relay)
            answer = {"jsonrpc": "2.0", "id": ident, "result": result}
        except RefusedError as refused:
            declined = {"jsonrpc": "2.0", "id": ident, "result": {"action": "decline"}}
            answer = declined if method == "elicitation/create" else error_of(ident, REFUSED, str(refused))
        except HooklineError as error:
            answer = error_of(ident, REFUSED, str(error))
        except Exception:  # a server must not wait for ever
            log.exception("a question of the MCP server %s", self.server)
            answer = error_of(ident, REFUSED, "the request could not be judged")
        finally:
            self._asked.pop(key, None)
        await self._send_to_server(encode(answer))

    # From the server.

    async def from_server(self, line: bytes) -> None:
        """Take a message of the server. What is no message, and what nobody asked for, is dropped."""
        try:
            message = decode(line)
        except MessageError as error:
            self._odd(f"a message that does not pass: {error}")
            return
        method = message.get("method")
        if method is None:
            await self._answer_from_server(message, line)
        elif not isinstance(method, str):
            self._odd("a message without a method")
        elif "id" in message:
            await self._request_from_server(message, line)
        elif method == "notifications/tools/list_changed":
            self.catalog.complete = False
            await self._to_client(line)
        elif method == "notifications/cancelled":
            params = message.get("params")
            key = id_key(params.get("requestId") if isinstance(params, dict) else None)
            if key in self._asked:
                await self._to_client(line)
        else:
            await self._to_client(line)

    async def _answer_from_server(self, message: Message, line: bytes) -> None:
        ident = message.get("id")
        if isinstance(ident, str) and ident in self._own:
            own = self._own[ident]
            if not own.done():
                own.set_result(message)
            return
        request = self._at_server.get(id_key(ident)) or self._open.get(id_key(ident))
        if request is None:
            self._odd("an answer to no request")
        elif request.response is not None:
            if not request.response.done():
                request.response.set_result((message, line))
        elif request.task is not None:
            self._odd("an answer to a request that it has answered, or never got")
        else:
            await self._respond(request, self._opened(request, message, line))

    def _opened(self, request: Request, message: Message, line: bytes) -> bytes:
        """Return the answer to a request that opens a session, without what the client must not see."""
        result = message.get("result")
        if request.method not in ("initialize", "server/discover") or not isinstance(result, dict):
            return line
        shown = dict(result)
        text = result.get("instructions")
        if text is not None and (not isinstance(text, str) or not self.catalog.instructions(text)):
            del shown["instructions"]
            log.warning("the instructions of the MCP server %s are not approved, and are hidden", self.server)
        capabilities = result.get("capabilities")
        if isinstance(capabilities, dict) and "tasks" in capabilities:
            shown["capabilities"] = {name: each for name, each in capabilities.items() if name != "tasks"}
        return line if shown == result else encode({**message, "result": shown})

    def _odd(self, what: str) -> None:
        self._oddities += 1
        if self._oddities <= MAX_QUESTIONS:
            log.warning("the MCP server %s sent %s", self.server, printable(what, keep="")[:200])

    # The ends.

    async def server_ended(self, why: str) -> None:
        """Answer everything that waits for the server."""
        self._closed = why
        for own in list(self._own.values()):
            if not own.done():
                own.set_exception(ServerGoneError(why))
        for request in list(self._open.values()):
            if request.response is not None and not request.response.done():
                request.response.set_exception(ServerGoneError(why))
            elif request.task is None:
                await self._respond(request, encode(error_of(request.ident, REFUSED, why)))
        tasks = [request.task for request in self._open.values() if request.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=2)

    async def close(self) -> None:
        """Cancel everything, because the client has gone."""
        self._closed = self._closed or "the client has gone"
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2)

    async def _send_to_server(self, line: bytes) -> None:
        if not self._closed:
            with suppress(ConnectionError):
                await self._to_server(line)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class PinGuard:
    """Blocks the call of a tool that was not approved as it is now, after all hooks that may change the call."""

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 1000
    name = "mcp-pins"

    def __init__(self, calls: Mapping[str, tuple[Gateway, Request | None]]) -> None:
        self._calls = calls

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Block the call, unless its tool was approved."""
        known = self._calls.get(request.id)
        if known is None:
            return None
        gateway, call = known
        if call is None:
            return HookResult.ask(f"Tools of the MCP server {gateway.server} are new or have changed. Use them now?")
        if call.method != "tools/call":
            return None
        refusal = call.refusal
        if refusal is None and request.name != call.name:
            refusal = gateway.catalog.refusal(gateway.catalog.remote_name(request.name))
        return None if refusal is None else HookResult.block(refusal)


class ClientApprover:
    """Asks the user of the MCP client, if no other approver has answered."""

    points = frozenset({APPROVAL_REQUESTED})
    priority = -1000
    name = "mcp-client"

    def __init__(self, calls: Mapping[str, tuple[Gateway, Request | None]]) -> None:
        self._calls = calls

    async def __call__(self, point: str, ctx: Any, request: ApprovalRequest) -> HookResult | None:
        """Return the answer; ``None`` if the client cannot ask."""
        known = self._calls.get(request.call.id)
        if known is None or known[1] is None:
            return None
        return await known[0].approve(known[1], request)


def _id_in(line: bytes) -> Any:
    """Return the id in a message that did not pass, so that the client knows which one; ``None`` without one."""
    try:
        ident = json.loads(line).get("id")
    except (ValueError, AttributeError, RecursionError):
        return None
    return ident if is_id(ident) else None
