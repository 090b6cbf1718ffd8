"""Turn the events of a run into the text of one chat reply, whole or piece by piece."""

from __future__ import annotations

from typing import Any

import msgspec

from ..._kernel.state import output_text
from ..._kernel.values import Usage
from ...stores.runs import StoredEvent

SEPARATOR = "\n\n"
"""Separates the texts of different steps."""


class _Stop(msgspec.Struct):
    kind: str = ""


class _Result(msgspec.Struct):
    reply: str = ""
    status: str = ""
    stop: _Stop | None = None
    output: Any = None


class _EventFields(msgspec.Struct):
    """The fields of events that matter here."""

    text: str = ""
    content: str = ""
    purpose: str = "step"
    tool_calls: list[Any] = []
    finish_reason: str = ""
    result: _Result = msgspec.field(default_factory=_Result)
    status: str = ""
    error: str = ""
    reason: str = ""
    usage: Usage = Usage()


_decode = msgspec.json.Decoder(_EventFields).decode
_RELEVANT = frozenset(
    ("text_delta", "discarded", "model_replied", "run_started", "step_started", "run_finished", "run_closed")
)


class ChatReply:
    """Collect the replies of an agent to its caller, step by step, without those of subagents and judges.

    :attr:`text` is the final reply. The pieces returned by :meth:`add_event` add up to the same text, without the
    characters that :meth:`take_withdrawn` withdraws: a hook may reject or change a reply that was already streamed.

    Args:
        live: whether to return text while the model writes it; if false, once no hook can change it any more.
    """

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._parts: list[str] = []
        self._first = 0  # index of the first part of this run; an agent that handed over has parts before it
        self._due = False  # whether the last part has not been sent yet
        self._sent_any = False
        self._streamed = ""  # the text of the current step that was sent
        self._sent_length = 0  # number of characters sent for the current step, with the separator
        self._withdrawn = 0
        self._last_void = False  # whether the last part was sent and then withdrawn
        self._space = ""  # trailing white space of the sent text; it is sent only if text follows
        self._whole = False  # whether the last step had text and no tool calls
        self._stop_kind = self._model_finish = ""
        self.status = self.error = ""
        """The final status of the run and its error; empty while the run goes on."""
        self.usage = Usage()

    @property
    def text(self) -> str:
        """The final reply."""
        return SEPARATOR.join(self._parts)

    @property
    def finish_reason(self) -> str:
        """Why the reply ends, in the terms of the OpenAI API."""
        if self.status == "ended":
            return "content_filter"
        if self.status == "stopped":
            return "length" if self._stop_kind.endswith("_limit") else "stop"
        return self._model_finish if self._model_finish in ("length", "content_filter") else "stop"

    def add_event(self, event: StoredEvent) -> str:
        """Process an event and return the text to send."""
        if event.type not in _RELEVANT:
            return ""
        fields = _decode(event.data)
        if event.type == "run_started":
            self._first = len(self._parts)
            return ""
        if event.type == "step_started":
            self._sent_length, self._last_void = 0, False
            return ""
        if event.type == "run_finished":
            return self._end(fields.result)
        if event.type == "run_closed":
            self.status, self.error = fields.status, fields.error or fields.reason
            self.usage = fields.usage
            return ""
        if fields.purpose != "step":
            return ""
        if event.type == "text_delta":
            return self._stream(fields.text) if self._live else ""
        if event.type == "discarded":
            self._last_void = not self._streamed
            self._streamed = self._space = ""
            self._withdrawn, self._sent_length = self._sent_length, 0
            return ""
        content = fields.content.strip()
        self._model_finish, self._whole = fields.finish_reason, bool(content) and not fields.tool_calls
        return self._settle(content)

    def take_withdrawn(self) -> int:
        """Return how many characters at the end of the sent text are void, and reset the number to 0."""
        withdrawn, self._withdrawn = self._withdrawn, 0
        return withdrawn

    def _stream(self, text: str) -> str:
        """Send a piece of text, without white space around the text of a step."""
        text = self._space + text if self._streamed else text.lstrip()
        visible = text.rstrip()
        self._space = text[len(visible) :]
        if not visible:
            return ""
        separator = "" if self._streamed else self._separator()
        self._streamed += visible
        self._sent_length += len(separator) + len(visible)
        return separator + visible

    def _settle(self, content: str) -> str:
        """Add the text of a step after the hooks have seen it."""
        streamed, self._streamed, self._space = self._streamed, "", ""
        if not content:
            return ""
        due = self._send_due()
        self._parts.append(content)
        if self._live:
            return self._remainder(streamed, content)
        self._due = True  # a hook may still change the last part
        return due

    def _end(self, result: _Result) -> str:
        """Process the end of a run: its reply is the text of the last step, or its replacement by a hook."""
        self._stop_kind = result.stop.kind if result.stop is not None else ""
        reply, streamed = result.reply.strip(), self._streamed
        self._streamed = self._space = ""
        if result.status not in ("completed", "stopped", "ended"):
            return ""
        output = output_text(result.output, result.reply).strip()
        if output != reply and not self._live:  # typed output replaces all text, for the use of programs
            self._parts[self._first :] = [output]
            self._due = True
            return self._send_due()
        last = self._parts[-1] if len(self._parts) > self._first else ""
        if result.status == "ended":
            due = self._send_due()
            if reply:
                self._parts.append(reply)
            return due + (self._separator() + reply if reply else "")
        if reply == last or not (reply or self._whole):
            return self._send_due()
        if last:
            self._parts.pop()
        if reply:
            self._parts.append(reply)
        if self._live:
            return self._remainder("" if streamed or self._last_void else last, reply)
        self._due = bool(reply)
        return self._send_due()

    def _send_due(self) -> str:
        """Return the last part if it has not been sent yet."""
        due, self._due = self._due, False
        return self._separator() + self._parts[-1] if due else ""

    def _remainder(self, sent: str, final: str) -> str:
        """Return the text that is missing after a part of it was sent."""
        if not final or final == sent:
            return ""
        rest = final[len(sent) :] if sent and final.startswith(sent) else self._separator() + final
        self._sent_length += len(rest)
        return rest

    def _separator(self) -> str:
        """Return the separator before the next part; nothing before the first."""
        sent_any, self._sent_any = self._sent_any, True
        return SEPARATOR if sent_any else ""
