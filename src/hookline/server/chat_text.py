"""What an agent says in a run, as one text: the events of the run go in, text for a chat client comes out."""

from __future__ import annotations

from typing import Any

import msgspec

from .._kernel.state import output_text
from .._kernel.values import Usage
from ..stores.runs import StoredEvent

APART = "\n\n"
"""Between what was said in different steps."""


class _Stop(msgspec.Struct):
    kind: str = ""


class _Result(msgspec.Struct):
    reply: str = ""
    status: str = ""
    stop: _Stop | None = None
    output: Any = None


class _Heard(msgspec.Struct):
    """What matters of any event."""

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


_decode = msgspec.json.Decoder(_Heard).decode
_TEXT = frozenset(("text_delta", "discarded", "model_replied", "run_started", "run_finished", "run_closed"))


class Said:
    """Gathers what the agent says to its caller, step by step; what is said inside it (subagents, judges) is not.

    :attr:`text` is what counts. What :meth:`take` gives, put together, is the same, but for what was taken back after
    it was out: a reply that a hook rejected, changed or ended the run over is followed by what counts instead.

    Args:
        live: give text as it comes; else when it is settled, so that nothing need be taken back.
    """

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._parts: list[str] = []
        self._first = 0  # of the parts, in this run: one that handed over came before
        self._due = False  # the last part is not out yet
        self._out = False  # something is out
        self._shown = self._space = ""
        self._whole = False
        self._kind = self._model_finish = ""
        self.status = self.error = ""
        """How the run ended; empty while it goes on."""
        self.usage = Usage()

    @property
    def text(self) -> str:
        """What counts."""
        return APART.join(self._parts)

    @property
    def finish_reason(self) -> str:
        """Why there is no more text, in the words of the protocol."""
        if self.status == "ended":
            return "content_filter"
        if self.status == "stopped":
            return "length" if self._kind.endswith("_limit") else "stop"
        return self._model_finish if self._model_finish in ("length", "content_filter") else "stop"

    def take(self, event: StoredEvent) -> str:
        """The text that an event brings."""
        if event.type not in _TEXT:
            return ""
        heard = _decode(event.data)
        if event.type == "run_started":
            self._first = len(self._parts)
            return ""
        if event.type == "run_finished":
            return self._end(heard.result)
        if event.type == "run_closed":
            self.status, self.error = heard.status, heard.error or heard.reason
            self.usage = heard.usage
            return ""
        if heard.purpose != "step":
            return ""
        if event.type == "text_delta":
            return self._show(heard.text) if self._live else ""
        if event.type == "discarded":
            self._shown = self._space = ""
            return ""
        content = heard.content.strip()
        self._model_finish, self._whole = heard.finish_reason, bool(content) and not heard.tool_calls
        return self._settle(content)

    def _show(self, text: str) -> str:
        """A piece as it comes; space around what is said in a step is left out."""
        text = self._space + text if self._shown else text.lstrip()
        said = text.rstrip()
        self._space = text[len(said) :]
        if not said:
            return ""
        begin = "" if self._shown else self._apart()
        self._shown += said
        return begin + said

    def _settle(self, content: str) -> str:
        """What was said in a step, now that the hooks have seen it."""
        shown, self._shown, self._space = self._shown, "", ""
        if not content:
            return ""
        given = self._give()
        self._parts.append(content)
        if self._live:
            return self._rest(shown, content)
        self._due = True  # it may be the last, which may still change
        return given

    def _end(self, result: _Result) -> str:
        """The end of a run: its reply is the last that was said, or what a hook made of that."""
        self._kind = result.stop.kind if result.stop is not None else ""
        reply, shown = result.reply.strip(), self._shown
        self._shown = self._space = ""
        if result.status not in ("completed", "stopped", "ended"):
            return ""
        output = output_text(result.output, result.reply).strip()
        if output != reply and not self._live:  # a typed output: nothing else is of use to a program
            self._parts[self._first :] = [output]
            self._due = True
            return self._give()
        last = self._parts[-1] if len(self._parts) > self._first else ""
        if result.status == "ended":
            given = self._give()
            if reply:
                self._parts.append(reply)
            return given + (self._apart() + reply if reply else "")
        if reply == last or not (reply or self._whole):
            return self._give()
        if last:
            self._parts.pop()
        if reply:
            self._parts.append(reply)
        if self._live:
            return self._rest("" if shown else last, reply)
        self._due = bool(reply)
        return self._give()

    def _give(self) -> str:
        """The last part, if it is not out yet."""
        due, self._due = self._due, False
        return self._apart() + self._parts[-1] if due else ""

    def _rest(self, out: str, counts: str) -> str:
        """What is missing, if so much of a part is out."""
        if not counts or counts == out:
            return ""
        if out and counts.startswith(out):
            return counts[len(out) :]
        return self._apart() + counts

    def _apart(self) -> str:
        out, self._out = self._out, True
        return APART if out else ""
