"""A model on loopback that makes the calls it is told to make: OpenAI Responses, OpenAI Chat, Anthropic and Gemini.

With it, a coding agent is driven without an account: to prove that a denial arrives (``proof``), and in tests. A
conversation says how many results it has, so the model keeps no state: its next call is the one after these results.
It needs nothing but the standard library.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

USAGE = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
CHAT_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
GEMINI_USAGE = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}


class Call(NamedTuple):
    """A tool call of the model.

    Args:
        tool: the agent's name of the tool.
        arguments: the arguments, or a function that makes them of the earlier results; a text for a tool of the
            Responses API that takes free text.
        namespace: the group of the tool, in the Responses API.
    """

    tool: str
    arguments: Mapping[str, Any] | str | Callable[[Sequence[str]], Mapping[str, Any]]
    namespace: str = ""


class LoopbackModel(http.server.ThreadingHTTPServer):
    """Makes one call after the other, then says "Done.".

    Args:
        scripts: the calls. The key is a text that the user's prompt of a conversation contains: subagents have
            conversations of their own.
    """

    daemon_threads = True

    def __init__(self, scripts: Mapping[str, Sequence[Call]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scripts = scripts
        self.bodies: list[dict[str, Any]] = []
        """All requests for a reply."""
        self.results: dict[str, list[str]] = {key: [] for key in scripts}
        """What the model has read of the results of its calls."""

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.server_port}"

    def next_call(self, prompt: str, results: Sequence[str], tools: Any) -> tuple[int, Call] | None:
        """Return the next call of a conversation with its number; ``None`` if there are no more, or no tools."""
        key = next((key for key in self.scripts if key in prompt), None)
        if key is None or not tools:
            return None
        self.results[key] = max(self.results[key], list(results), key=len)
        number = len(results)
        if number >= len(self.scripts[key]):
            return None
        call = self.scripts[key][number]
        return number, call._replace(arguments=call.arguments(results)) if callable(call.arguments) else call


@contextmanager
def serving(scripts: Mapping[str, Sequence[Call]]) -> Iterator[LoopbackModel]:
    """Start a model, and stop it at the end of the block."""
    with LoopbackModel(scripts) as model:
        threading.Thread(target=model.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield model
        finally:
            model.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: LoopbackModel  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "fake", "object": "model"}], "models": []}
        self._send("application/json", json.dumps(models))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = self.path.partition("?")[0]
        for end, reply in (
            ("/responses", self._responses),
            ("/chat/completions", self._chat),
            ("/v1/messages", self._messages),
            (":generateContent", self._gemini),
            (":streamGenerateContent", self._gemini),
        ):
            if path.endswith(end):
                self.server.bodies.append(body)
                reply(body)
                return
        counted = {"totalTokens": 1} if path.endswith(":countTokens") else {}
        self._send("application/json", json.dumps({"input_tokens": 1} if path.endswith("/count_tokens") else counted))

    def _responses(self, body: dict[str, Any]) -> None:
        items = body["input"] if isinstance(body.get("input"), list) else []
        prompt = _texts(item for item in items if item.get("role") == "user")
        results = [_text(item["output"]) for item in items if item.get("type", "").endswith("call_output")]
        tools = body.get("tools") or [item for item in items if item.get("type") == "additional_tools"]
        call = self.server.next_call(prompt, results, tools)
        item = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
        }
        if call is not None:
            number, (tool, arguments, namespace) = call
            item = {"call_id": f"call_{number}", "id": f"fc_{number}", "name": tool, "status": "completed"}
            if isinstance(arguments, str):
                item |= {"type": "custom_tool_call", "input": arguments}
            else:
                item |= {"type": "function_call", "arguments": json.dumps(arguments)}
            if namespace:
                item["namespace"] = namespace
        final = {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": USAGE}
        self._stream(
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": final},
        )

    def _chat(self, body: dict[str, Any]) -> None:
        messages = body["messages"]
        prompt = _texts(message for message in messages if message["role"] == "user")
        results = [_text(message["content"]) for message in messages if message["role"] == "tool"]
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        reason = "stop"
        if (call := self.server.next_call(prompt, results, body.get("tools"))) is not None:
            number, (tool, arguments, _) = call
            function = {"name": tool, "arguments": json.dumps(arguments)}
            calls = [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]
            message, reason = {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"
        base = {"id": "chat_1", "created": 1, "model": "fake"}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            whole = {**base, "object": "chat.completion", "choices": [choice], "usage": CHAT_USAGE}
            self._send("application/json", json.dumps(whole))
            return
        chunk = {**base, "object": "chat.completion.chunk"}
        self._stream(
            {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {**chunk, "choices": [], "usage": CHAT_USAGE},
            end="data: [DONE]\n\n",
        )

    def _messages(self, body: dict[str, Any]) -> None:
        said = [message for message in body["messages"] if message["role"] == "user"]
        parts = [part for message in said if isinstance(message["content"], list) for part in message["content"]]
        results = [_text(part.get("content", "")) for part in parts if part.get("type") == "tool_result"]
        call = self.server.next_call(_texts(said), results, body.get("tools"))
        content: dict[str, Any] = {"type": "text", "text": "Done."}
        start, reason = content | {"text": ""}, "end_turn"
        delta: dict[str, Any] = {"type": "text_delta", "text": "Done."}
        if call is not None:
            number, (tool, arguments, _) = call
            content = {"type": "tool_use", "id": f"toolu_{number:04d}", "name": tool, "input": arguments}
            start, reason = content | {"input": {}}, "tool_use"
            delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        usage = {"input_tokens": 1, "output_tokens": 1}
        base = {"id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model", "fake")}
        base |= {"usage": usage}
        end = {"stop_reason": reason, "stop_sequence": None}
        if not body.get("stream"):
            self._send("application/json", json.dumps(base | end | {"content": [content]}))
            return
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        self._stream(
            {"type": "message_start", "message": base | empty},
            {"type": "content_block_start", "index": 0, "content_block": start},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": usage},
            {"type": "message_stop"},
        )

    def _gemini(self, body: dict[str, Any]) -> None:
        said = [content for content in body["contents"] if content.get("role") == "user"]
        parts = [part for content in said for part in content["parts"]]
        results = [_text(part["functionResponse"]["response"]) for part in parts if "functionResponse" in part]
        call = self.server.next_call(_texts(said), results, body.get("tools"))
        part: dict[str, Any] = {"text": "Done."}
        if call is not None:
            number, (tool, arguments, _) = call
            part = {"functionCall": {"id": f"call_{number}", "name": tool, "args": arguments}}
        content = {"role": "model", "parts": [part]}
        answer = {"candidates": [{"index": 0, "content": content, "finishReason": "STOP"}]}
        answer |= {"usageMetadata": GEMINI_USAGE}  # type: ignore[dict-item]
        if "stream" in self.path:
            self._stream(answer)
        else:
            self._send("application/json", json.dumps(answer))

    def _stream(self, *events: dict[str, Any], end: str = "") -> None:
        names = (f"event: {each['type']}\n" if "type" in each else "" for each in events)
        lines = (f"{name}data: {json.dumps(each)}\n\n" for name, each in zip(names, events, strict=True))
        self._send("text/event-stream", "".join(lines) + end)

    def _send(self, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _texts(messages: Iterator[Any] | Sequence[Any]) -> str:
    return " ".join(json.dumps(message) for message in messages)
