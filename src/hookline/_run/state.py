"""The mutable state of a run: transcript, steps, signals, errors and usage (DESIGN 6.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._base.frozen import History, HistoryBuilder, as_history, empty, private_copy
from .._kernel.state import AgentState
from .._kernel.values import ErrorInfo, Ids, Message, Step, StopSignal, Usage
from .budget import Budget

_EDITABLE = ("messages", "metadata", "system_prompt", "response_format")


class RunState:
    """The state of one run, private to the loop. Hooks get a read-only ``view``.

    ``version`` grows with every change, and each editable part has the version of its last change. A hook's
    ``state=`` contains the version that the hook read. A change to a part that has been modified since then is
    rejected, so that no update is lost.
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
        self.successful_calls = 0
        self.tool_names: dict[str, None] = {}
        self.spent: Usage | None = None
        """The usage of the model calls in this step."""
        self.edited = False
        """Whether a hook changed the transcript."""
        self._messages: HistoryBuilder[Message] = HistoryBuilder(messages)
        self._steps: HistoryBuilder[Step] = HistoryBuilder()
        self._open: Message | None = None
        self._waiting: tuple[Message, ...] = ()
        self.version = 1
        self._changed_at: dict[str, int] = dict.fromkeys(_EDITABLE, 1)
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
        """Return the state for hooks; the same object until something changes.

        Its JSON values are copies, which are renewed if a hook changed one of them in place.
        """
        if self._view is None or self._view.metadata != self.metadata:
            self._view = AgentState(
                self._messages.view(),
                private_copy(self.metadata),
                self.system_prompt,
                private_copy(self.response_format),
                self._steps.view(),
                self.budget.usage,
                self.signals,
                self.errors,
                self.ids,
                self.version,
            )
        return self._view

    def _touch(self, part: str = "") -> None:
        self.version += 1
        self._view = None
        if part:
            self._changed_at[part] = self.version

    # Changes by the loop.

    def append(self, message: Message) -> None:
        """Add a message to the transcript."""
        self._messages.append(message)
        self.version += 1
        self._changed_at["messages"] = self.version
        self._view = None

    def open_calls(self, message: Message) -> None:
        """Add a reply with tool calls. Other messages wait until the calls have results."""
        self.append(message)
        self._open = message
        for call in message.tool_calls:
            self.call_ids.add(call.id)

    def close_calls(self, results: Sequence[Message]) -> None:
        """Add all results, then the waiting messages (DESIGN 4.5 e)."""
        waiting, self._waiting, self._open = self._waiting, (), None
        for message in (*results, *waiting):
            self.append(message)

    def finish_step(self, step: Step) -> None:
        """Add a finished step."""
        self._steps.append(step)
        self.version += 1
        self._view = None

    def set_signals(self, signals: tuple[StopSignal, ...]) -> None:
        """Replace the stop signals."""
        self.signals = signals
        self._touch()

    def add_error(self, error: ErrorInfo) -> None:
        """Add an error."""
        self.errors = (*self.errors, error)
        self._touch()

    def set_system_prompt(self, text: str) -> None:
        """Set the system prompt."""
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
        self.successful_calls += ok
        self.tool_names[tool] = None

    # Changes by hooks.

    def accept(self, given: object) -> None:
        """Apply a hook's ``state=``. Messages added while calls have no results wait for the results.

        Raises:
            TypeError: it changes a part that hooks may not change, or that has changed since the hook read it.
        """
        now = self.view()
        read_at = (given.version if isinstance(given, AgentState) else 0) or now.version
        if isinstance(given, AgentState) and read_at < now.version:
            # The loop may have changed its own parts since then: only apply the parts that the hook changed.
            given = now.replace({part: getattr(given, part) for part in self._changed_parts(given, read_at, now)})
        accepted = now.accept(given)
        for part in _EDITABLE:
            if getattr(accepted, part) is getattr(now, part):
                continue
            if part == "messages":
                self._apply_messages(accepted.messages, now.messages)
                self.edited = True
            else:
                value = getattr(accepted, part)
                setattr(self, part, value if part == "system_prompt" else private_copy(value))
            self._touch(part)

    def _changed_parts(self, given: AgentState, read_at: int, now: AgentState) -> list[str]:
        """Return the parts that a hook changed in an older state."""
        changed = []
        for part in _EDITABLE:
            value, present = getattr(given, part), getattr(now, part)
            if value is present or value == present:
                continue
            if self._changed_at[part] > read_at:
                if part == "messages" and as_history(present).tail_after(value) is not None:
                    continue  # the hook did not change the transcript, which has grown since
                raise TypeError(f"AgentState.{part} was changed since this hook read it: read ctx.state again")
            changed.append(part)
        return changed

    def _apply_messages(self, messages: Sequence[Message], before: Sequence[Message]) -> None:
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
            self._waiting += tuple(messages[found[-1] + 1 :])
            messages = messages[: found[-1] + 1]
        self._messages = HistoryBuilder(messages)
