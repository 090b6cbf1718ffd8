"""The immutable state of a run, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn

import msgspec

from .._base.frozen import Frozen, FrozenDict, History, as_history, empty, freeze, json_text, plain
from .._base.text import counted, shorten
from .errors import HooklineError
from .values import ErrorInfo, Ids, Message, Status, Step, StopSignal, Usage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=Any)
else:  # type variables with defaults come with Python 3.13
    from typing import TypeVar

    OutputT = TypeVar("OutputT")

_SCRATCH = "Use ctx.scratch for your own data, or metadata for data that should be saved."


class AgentState(Frozen, frozen=True):
    """The current state of a run, to read.

    Hooks may change ``messages``, ``metadata``, ``system_prompt`` and ``response_format`` by returning a changed copy
    as ``state=``. All other fields belong to the loop (DESIGN 6.1).

    Example::

        @hook(BEFORE_STEP)
        def count_steps(ctx, step):
            return HookResult.cont(state=ctx.state.with_metadata(steps=step.index + 1))
    """

    messages: Sequence[Message] = ()
    metadata: Mapping[str, Any] = msgspec.field(default_factory=empty)
    system_prompt: str = ""
    response_format: Any = None
    steps: Sequence[Step] = ()
    usage: Usage = Usage()
    signals: tuple[StopSignal, ...] = ()
    errors: tuple[ErrorInfo, ...] = ()
    ids: Ids = Ids()
    version: int = 0
    """Incremented with every change, so that the run can detect a ``state=`` that is based on an outdated state."""

    editable = frozenset(("messages", "metadata", "system_prompt", "response_format"))

    def __post_init__(self) -> None:
        if type(self.messages) is not History:
            self._seal("messages", as_history)
        if type(self.steps) is not History:
            self._seal("steps", as_history)
        if type(self.metadata) is not FrozenDict:
            self._seal("metadata", freeze)
        if self.response_format is not None and type(self.response_format) is not FrozenDict:
            self._seal("response_format", freeze)

    def __getitem__(self, name: str) -> Any:
        try:
            return super().__getitem__(name)
        except KeyError as error:
            raise KeyError(f"{error.args[0]} {_SCRATCH}") from None

    def __setitem__(self, name: str, value: object) -> NoReturn:
        raise TypeError(
            f"AgentState cannot be changed in place; a hook returns state=ctx.state.replace(...). {_SCRATCH}"
        )

    @property
    def step_count(self) -> int:
        """The number of finished steps."""
        return len(self.steps)

    @property
    def current_step(self) -> Step | None:
        """The last finished step."""
        return self.steps[-1] if self.steps else None

    def with_messages(self, *messages: Message) -> AgentState:
        """Return a copy with messages appended."""
        return self.replace(messages=as_history(self.messages).plus(*messages))

    def with_metadata(self, **data: Any) -> AgentState:
        """Return a copy with entries of ``metadata`` set."""
        return self.replace(metadata={**self.metadata, **data})

    def with_system_prompt(self, text: str) -> AgentState:
        """Return a copy with another system prompt, which the next model call uses."""
        return self.replace(system_prompt=text)

    def accept(self, value: object) -> AgentState:
        """Check a hook's ``state=`` (see :meth:`Frozen.accept`). Tool calls must keep their results."""
        new = super().accept(value)
        if new.messages is not self.messages:
            tail = as_history(new.messages).tail_after(self.messages)
            whole = tail is None
            open_calls = _open_calls(new.messages if tail is None else tail)
            if open_calls is None or open_calls != (_open_calls(self.messages) if whole else []):
                raise TypeError(
                    "AgentState.messages: a tool call and its result may only be removed together, and stay in order"
                )
        return new


def _open_calls(messages: Sequence[Message]) -> list[str] | None:
    """Return the ids of calls without a result; ``None`` if a result does not follow its call or an id is repeated."""
    seen: set[str] = set()
    left: list[str] = []
    expected: list[str] = []
    for message in messages:
        if message.role == "tool":
            if not expected or expected.pop(0) != message.call_id:
                return None
            continue
        left += expected
        expected = [call.id for call in message.tool_calls]
        if len(seen) + len(expected) != len(seen := seen.union(expected)):
            return None
    return left + expected


class _ResultFields(Frozen, Generic[OutputT], frozen=True):
    """The fields of :class:`AgentResult`, which guards the reading of one of them."""

    reply: str = ""
    status: Status = "completed"
    stop: StopSignal | None = None
    hook_ended: str | None = None
    task: str = ""
    steps: Sequence[Step] = ()
    usage: Usage = Usage()
    cost: float | None = 0.0
    tool_calls: int = 0
    tool_names: tuple[str, ...] = ()
    successful_tool_calls: int = 0
    messages: Sequence[Message] = ()
    errors: tuple[ErrorInfo, ...] = ()
    elapsed: float = 0.0
    ids: Ids = Ids()
    output: OutputT = None  # type: ignore[assignment]


_stored_output: Callable[[_ResultFields[Any]], Any] = vars(_ResultFields)["output"].__get__


class AgentResult(_ResultFields[OutputT], Generic[OutputT], frozen=True):
    """The result of a run, and the payload of ``on_run_end``.

    ``messages`` are the messages that this run added. ``cost`` is ``None`` if the price of any call is unknown.
    ``hook_ended`` is the reason given by the hook that ended the run, or else the name of that hook. ``output`` is the
    reply; with an ``output_type``, the value in the reply. In JSON it is ``null`` if there was no final reply.

    Example::

        result = agent.run("What is 17 * 23?")
        print(result.reply, result.status, result.usage.total_tokens, result.cost)
    """

    editable = frozenset(("reply", "hook_ended", "task", "messages", "errors", "cost"))

    @property  # type: ignore[misc] # a property overrides a field
    def output(self) -> OutputT:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The reply; with an ``output_type``, the value in the reply. Hooks and events get this value as JSON.

        Raises:
            HooklineError: the agent has an ``output_type``, and the run has no final reply.
        """
        output = self.output_or_none
        if output is None and not self._has_final_reply:
            run = f"run {self.ids.run_id}" if self.ids.run_id else "the run"
            raise HooklineError(
                f"{run} ended with the status {self.status}{self._why} and has no output: check result.status, or use "
                "result.output_or_none"
            )
        return output  # type: ignore[return-value] # a final reply may be null

    @property
    def output_or_none(self) -> OutputT | None:
        """The output, or ``None`` if there is none."""
        output: OutputT | None = _stored_output(self)
        return output

    @property
    def _has_final_reply(self) -> bool:
        """Whether the run ended with a final reply of the model. Then ``None`` is the value in that reply."""
        last = next((message for message in reversed(self.messages) if message.role != "user"), None)
        if last is None:  # an imported run, or a result made by a program
            return self.status == "completed"
        return self.status in ("completed", "stopped") and last.role == "assistant" and not last.tool_calls

    @property
    def output_text(self) -> str:
        """The output as text: a string unchanged, any other value as JSON, and the reply if there is no output."""
        return output_text(self.output_or_none, self.reply)

    def __post_init__(self) -> None:
        if type(self.messages) is not History:
            self._seal("messages", tuple)
        if type(self.steps) is not History:
            self._seal("steps", tuple)

    def __str__(self) -> str:
        """Show the status, the shortened reply and the usage of the run; ``repr`` shows everything."""
        cost = "cost unknown" if self.cost is None else f"{self.cost:.4g} USD"
        took = (counted(len(self.steps), "step"), counted(self.tool_calls, "tool call"))
        tokens = counted(self.usage.total_tokens, "token")
        line = " ".join(f"{self.status}{self._why}: {self.reply}".split())
        return f"{shorten(line, 300)}\n{', '.join((*took, tokens, cost))}"

    @property
    def _why(self) -> str:
        """The cause of the status, in parentheses."""
        if self.status == "failed" and self.errors:
            return f" ({self.errors[-1].type}: {self.errors[-1].message})"
        if self.status == "ended":
            return f" ({self.hook_ended})" if self.hook_ended else ""
        if self.status != "completed" and self.stop is not None:
            return f" ({self.stop.kind})"
        return ""


def output_text(output: Any, reply: str) -> str:
    """Return the output of a run as text; see :attr:`AgentResult.output_text`."""
    if output is None:
        return reply
    form = plain(output)
    return form if isinstance(form, str) else json_text(form)
