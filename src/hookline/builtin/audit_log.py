"""A file with one line for every model reply, decision about a call, tool result and finished run."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..base.frozen import digest, json_text, plain
from ..kernel.errors import RegistrationError
from ..kernel.payloads import ApprovalDecision, ModelReply, ModelRequest, ToolCallRequest, ToolCallResult
from ..kernel.points import AFTER_LLM, AFTER_TOOL, APPROVAL_DECIDED, BEFORE_TOOL, ON_RUN_END
from ..kernel.results import HookAction, Verdict
from ..kernel.state import AgentResult
from .checks import flag, path_of

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_BREAKS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}  # lines end here too, say some readers
_ASKED = ("messages", "tools", "model", "response_format", "tool_choice", "params")


class AuditLogHook:
    """Writes what models said, what was decided about calls, what tools gave and how runs ended into a JSONL file.

    One JSON object per line, each appended by a single write, so that threads and processes may share the file
    and a crash leaves whole lines. Every line has ``time`` (UTC), ``point``, the ids, ``verdict`` (the verb that
    held, with ``hook`` and ``reason``), and the fields of the payload as they left the point. A line that cannot be
    written is reported and the run goes on; register it with ``on_failure="closed"`` if it must not.

    Args:
        path: the file; made, with its folder, for its owner only.
        content: whether texts, arguments and results are written, not only their lengths and digests.

    Raises:
        RegistrationError: the path is none, or a folder.
    """

    points = frozenset({AFTER_LLM, BEFORE_TOOL, APPROVAL_DECIDED, AFTER_TOOL, ON_RUN_END})
    phase = "observe"
    priority = 0

    def __init__(self, path: str | os.PathLike[str], *, content: bool = True) -> None:
        self.path = (
            Path(path_of(path, "path= is the file to write into, such as 'audit.jsonl'")).expanduser().absolute()
        )
        if self.path.is_dir():
            raise RegistrationError(f"{str(self.path)!r} is a folder: name a file in it")
        self.content = flag(content, "content")
        self._torn: bool | None = None
        self._lock = threading.Lock()

    async def __call__(self, point: str, ctx: Any, payload: Any, verdict: Verdict) -> None:
        """Write one line; of calls before they run, only if hooks had something to say."""
        if point == BEFORE_TOOL and not (verdict.asks or verdict.answer or verdict.action is not HookAction.CONTINUE):
            return
        now = datetime.fromtimestamp(ctx.clock.time(), UTC).isoformat(timespec="milliseconds")
        await asyncio.to_thread(self._write, f"{now.removesuffix('+00:00')}Z", point, payload, verdict)

    def _write(self, time: str, point: str, payload: Any, verdict: Verdict) -> None:
        record = {"time": time, "point": str(point), **plain(payload.ids), "verdict": str(verdict.action)}
        if verdict.hook:
            record["hook"] = verdict.hook
        record |= self._texts(reason=verdict.reason) if verdict.reason else {}
        text = json_text(record | self._fields(payload, verdict))
        for character, escape in _BREAKS.items():
            text = text.replace(character, escape)
        line = text.encode() + b"\n"
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.path, _FLAGS, 0o600)
        try:
            with self._lock:
                if self._torn is None:
                    self._torn = _ends_in_a_line_begun(self.path)
                line = b"\n" + line if self._torn else line
                self._torn = 0 < os.write(file, line) < len(line)
                if self._torn:
                    raise OSError(f"only a part of a line could be written to {str(self.path)!r}")
        finally:
            os.close(file)

    def _fields(self, payload: Any, verdict: Verdict) -> dict[str, Any]:
        if isinstance(payload, ModelReply):
            return self._reply(payload)
        if isinstance(payload, ToolCallRequest):
            return self._judged(payload, verdict)
        if isinstance(payload, ApprovalDecision):
            told = {
                "call_id": payload.call_id,
                "decision": payload.decision,
                "by": payload.by,
                "digest": payload.digest,
            }
            return told | (self._texts(message=payload.message) if payload.message else {})
        return self._result(payload) if isinstance(payload, ToolCallResult) else self._end(payload)

    def _reply(self, reply: ModelReply) -> dict[str, Any]:
        calls = [
            {"id": call.id, "name": call.name, **self._call(call.name, call.arguments)}
            | (self._texts(raw=call.raw) if call.raw is not None else {})
            for call in reply.tool_calls
        ]
        return {
            "hop": reply.hop, "attempt": reply.attempt, "purpose": reply.purpose, "model": reply.model,
            "provider": reply.provider, "organization_id": reply.organization_id, "source": reply.source,
            "request_digest": request_digest(reply.request), **self._texts(content=reply.content), "tool_calls": calls,
            "finish_reason": reply.finish_reason, "usage": plain(reply.usage), "cost": reply.cost,
            "duration": reply.duration,
        }  # fmt: skip

    def _judged(self, call: ToolCallRequest, verdict: Verdict) -> dict[str, Any]:
        told: dict[str, Any] = {"hop": call.hop, "attempt": call.attempt, "call_id": call.id, "tool": call.name}
        told |= self._call(call.name, call.arguments)
        if isinstance(verdict.value, str):
            told |= self._texts(message=verdict.value)
        if verdict.answer is not None:
            told["answered_by"] = verdict.answer.hook
        if verdict.asks:
            told["asks"] = [{"hook": asked.hook, **self._texts(question=asked.text)} for asked in verdict.asks]
        return told

    def _result(self, result: ToolCallResult) -> dict[str, Any]:
        return {
            "hop": result.hop, "attempt": result.attempt, "call_id": result.id, "tool": result.name,
            **self._call(result.name, result.arguments), "outcome": result.outcome, "duration": result.duration,
            **(self._texts(error=result.error) if result.error is not None else self._texts(result=result.result)),
        }  # fmt: skip

    def _end(self, result: AgentResult) -> dict[str, Any]:
        stop = {} if result.stop is None else {"kind": result.stop.kind, **self._texts(message=result.stop.message)}
        errors = [
            {"where": e.where, "type": e.type, "source": e.source, "call_id": e.call_id, "fatal": e.fatal}
            | self._texts(message=e.message)
            for e in result.errors
        ]
        return {
            "status": result.status, "stop": stop or None,
            **({} if result.hook_ended is None else self._texts(hook_ended=result.hook_ended)),
            **self._texts(task=result.task, reply=result.reply), "steps": len(result.steps),
            "tool_calls": result.tool_calls, "usage": plain(result.usage), "cost": result.cost,
            "elapsed": result.elapsed, "errors": errors,
        }  # fmt: skip

    def _call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**({"arguments": arguments} if self.content else {}), "digest": digest([name, arguments])}

    def _texts(self, **texts: Any) -> dict[str, Any]:
        if self.content:
            return texts
        return {f"{name}_chars": len(x if isinstance(x, str) else json_text(x)) for name, x in texts.items()}


def _ends_in_a_line_begun(path: Path) -> bool:
    """Whether a program that wrote here before, such as one whose disk was full, left half a line."""
    if not path.is_file():  # a pipe, say
        return False
    with suppress(OSError), path.open("rb") as file:  # it may be for writing only
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    return False


def request_digest(request: ModelRequest) -> str:
    """A SHA-256 over what a model was asked, whichever run, hop or attempt it was."""
    return digest(plain([getattr(request, name) for name in _ASKED]))
