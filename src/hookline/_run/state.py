"""What a run owns and hooks only see: transcript, steps, signals, errors and what the model calls used (DESIGN 6.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._base.frozen import History, HistoryBuilder, as_history, empty, private_copy
from .._kernel.state import AgentState
from .._kernel.values import ErrorInfo, Ids, Message, Step, StopSignal, Usage
from .budget import Budget

_FREE = ("messages", "metadata", "system_prompt", "response_format")


class RunState:
    """The state of one run, private to the loop. ``view`` is what hooks get to see of it.

    ``version`` grows with every change, and each part that hooks may change remembers the version of its last change.
    A hook's ``state=`` carries the version that the hook read: a part that somebody else changed since then is
    refused, so that no change is lost.
    """

    def __init__(
        self,
        ids: Ids,
        budget: Budget,
        messages: Sequence[Message] = (),
        metadata: Mapping[str, Any] | None = None,
        system_prompt: str = "",
        response_format: Any = None,
    ) -> None:
        self.ids = ids
        self.budget = budget
        self.metadata: Mapping[str, Any] = metadata if metadata is not None else empty()
        self.system_prompt = system_prompt
        self.response_format = response_format
        self.signals: tuple[StopSignal, ...] = ()
        self.errors: tuple[ErrorInfo, ...] = ()
        self.call_ids = {call.id for message in messages for call in message.tool_calls}
        self.calls = 0
        self.good_calls = 0
        self.tool_names: dict[str, None] = {}
        self.spent: Usage | None = None
        """What the model calls of this step used."""
        self._messages: HistoryBuilder[Message] = HistoryBuilder(messages)
        self._steps: HistoryBuilder[Step] = HistoryBuilder()
        self._open: Message | None = None
        self._held: tuple[Message, ...] = ()
        self.version = 1
        self._changed_at: dict[str, int] = dict.fromkeys(_FREE, 1)
        self._view: AgentState | None = None

    @property
    def messages(self) -> History[Message]:
        """The transcript so far."""
        return self._messages.view()

    @property
    def steps(self) -> History[Step]:
        """The finished steps."""
        return self._steps.view()

    def view(self) -> AgentState:
        """The state as hooks see it; the same object until something changes.

        Hooks get copies of the JSON in it, and new ones if a hook changed a copy in place.
        """
        if self._view is None or self._view.metadata != self.metadata:
            self._view = AgentState(
                self._messages.view(), private_copy(self.metadata), self.system_prompt,
                private_copy(self.response_format), self._steps.view(), self.budget.usage, self.signals, self.errors,
                self.ids, self.version,
            )  # fmt: skip
        return self._view

    def _touch(self, part: str = "") -> None:
        self.version += 1
        self._view = None
        if part:
            self._changed_at[part] = self.version

    # What the loop changes.

    def append(self, message: Message) -> None:
        """Add a message to the transcript."""
        self._messages.append(message)
        self.version += 1
        self._changed_at["messages"] = self.version
        self._view = None

    def open_calls(self, message: Message) -> None:
        """Add a reply with tool calls: until they have results, other messages are held back."""
        self.append(message)
        self._open = message
        for call in message.tool_calls:
            self.call_ids.add(call.id)

    def close_calls(self, results: Sequence[Message]) -> None:
        """Add all results at once, then the messages that were held back (DESIGN 4.5 e)."""
        held, self._held, self._open = self._held, (), None
        for message in (*results, *held):
            self.append(message)

    def finish_step(self, step: Step) -> None:
        """Add a finished step."""
        self._steps.append(step)
        self.version += 1
        self._view = None

    def set_signals(self, signals: tuple[StopSignal, ...]) -> None:
        """Replace the recorded stop signals."""
        self.signals = signals
        self._touch()

    def add_error(self, error: ErrorInfo) -> None:
        """Record an error."""
        self.errors = (*self.errors, error)
        self._touch()

    def set_system_prompt(self, text: str) -> None:
        """Put the joined system prompt in place."""
        self.system_prompt = text
        self._touch("system_prompt")

    def charge(self, usage: Usage, cost: float | None) -> None:
        """Count a model call."""
        self.budget.charge(usage, cost)
        self.spent = usage if self.spent is None else self.spent + usage
        self.version += 1
        self._view = None

    def count_call(self, tool: str, *, ok: bool) -> None:
        """Count a finished tool call for the result."""
        self.calls += 1
        self.good_calls += ok
        self.tool_names[tool] = None

    # What hooks hand back.

    def accept(self, given: object) -> None:
        """Take over a hook's ``state=``; messages added while calls are open wait for their results.

        Raises:
            TypeError: it changes what hooks may not change, or what was changed since the hook read it.
        """
        now = self.view()
        read_at = (given.version if isinstance(given, AgentState) else 0) or now.version
        if isinstance(given, AgentState) and read_at < now.version:
            # The loop's own part may have moved on since: only the parts that the hook itself changed count.
            given = now.replace({part: getattr(given, part) for part in self._changed_parts(given, read_at, now)})
        accepted = now.accept(given)
        for part in _FREE:
            if getattr(accepted, part) is getattr(now, part):
                continue
            if part == "messages":
                self._take_messages(accepted.messages, now.messages)
            else:
                value = getattr(accepted, part)
                setattr(self, part, value if part == "system_prompt" else private_copy(value))
            self._touch(part)

    def _changed_parts(self, given: AgentState, read_at: int, now: AgentState) -> list[str]:
        """The parts that a hook changed in the state that it read a while ago."""
        changed = []
        for part in _FREE:
            value, present = getattr(given, part), getattr(now, part)
            if value is present or value == present:
                continue
            if self._changed_at[part] > read_at:
                if part == "messages" and as_history(present).tail_after(value) is not None:
                    continue  # the transcript as the hook read it: it only grew since
                raise TypeError(f"AgentState.{part} was changed since this hook read it: read ctx.state again")
            changed.append(part)
        return changed

    def _take_messages(self, messages: Sequence[Message], before: Sequence[Message]) -> None:
        tail = as_history(messages).tail_after(before)
        known = {call.id for message in before for call in message.tool_calls} if tail is None else set()
        new = messages if tail is None else tail
        fresh = {call.id for message in new for call in message.tool_calls} - known
        if fresh & self.call_ids:
            raise TypeError("AgentState.messages: a new call has the id of an old one")
        self.call_ids |= fresh
        if tail is not None and self._open is None:
            for message in tail:
                self._messages.append(message)
            return
        if self._open is not None:
            ids = [call.id for call in self._open.tool_calls]
            found = [i for i, message in enumerate(messages) if [call.id for call in message.tool_calls] == ids]
            self._held += tuple(messages[found[-1] + 1 :])
            messages = messages[: found[-1] + 1]
        self._messages = HistoryBuilder(messages)
