"""The parts that the codecs of all coding agents share.

A codec says how an agent sends its events, which tools it has, and which answers it obeys. What an agent cannot do (ask
on behalf of a hook, apply a change) becomes a denial, because the call would run otherwise.

Like the codecs, this module needs nothing but the standard library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from ..events import SAME, AgentEvent, Answer, CommandOutput, Kind
from ..options import BLOCKED

MAX_TEXT = 10_000
"""Maximum number of characters of a text in an answer. Claude Code uses no more."""

PREFIX = "Hookline: "
"""The prefix of a reason on stderr."""

NO_QUESTION = (
    "This needs an approval, and this coding agent cannot ask for one on behalf of a hook. "
    "A hook at approval_requested can approve it."
)
NO_CHANGE = "A hook changed this call, and this coding agent does not apply the change."

_KEPT = frozenset(("type", "filePath", "file_path", "media_type", "mimeType"))
"""Fields that say what a response is."""

ToolKind = Literal[
    "shell",
    "read_file",
    "write_file",
    "edit_file",
    "edit_notebook",
    "delete_file",
    "apply_patch",
    "list_files",
    "find_text",
    "fetch",
    "search_web",
    "subagent",
    "harmless",
]
"""The kinds of tools that guards know."""


class AgentTool(NamedTuple):
    """A tool of a coding agent.

    Args:
        theirs: the agent's name of the tool.
        kind: what it does.
        arguments: the agent's names of arguments, each with ours; others have the same name.
        ours: our name of the tool; by default the kind. Tools of the kinds ``subagent``, ``harmless`` and
            ``search_web`` keep the agent's name.
        takes_glob: whether the argument ``glob`` of a search can exclude files.
    """

    theirs: str
    kind: ToolKind
    arguments: Mapping[str, str] = {}
    ours: str = ""
    takes_glob: bool = False

    @property
    def name(self) -> str:
        """Our name of the tool."""
        return self.ours or (self.theirs if self.kind in ("subagent", "harmless", "search_web") else self.kind)


class Codec(ABC):
    """How one coding agent talks to its hooks.

    Class variables:
        name: the name for ``--agent``.
        title: the name of the program.
        platform: what runs and sessions are marked with.
        events: the agent's names of the events that matter here, each with its kind.
        ignored: the names of its other events.
        tools: its tools.
        knows_all_tools: whether guards judge other tools, as undeclared. If not, they are denied.
        can_ask: whether the agent asks its user if a hook wants that.
        can_stop: whether the agent stops if a hook wants that.
        can_go_on: whether the agent goes on if a hook wants that when it is about to stop.
        hides_input: whether what is typed into a running command passes no hook.
        time_unit: how many of the agent's units of time are a second.
        handler: more fields of a hook in its settings.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    platform: ClassVar[str]
    events: ClassVar[Mapping[str, Kind]]
    ignored: ClassVar[frozenset[str]] = frozenset()
    tools: ClassVar[tuple[AgentTool, ...]] = ()
    knows_all_tools: ClassVar[bool] = False
    can_ask: ClassVar[bool] = False
    can_stop: ClassVar[bool] = False
    can_go_on: ClassVar[bool] = True
    hides_input: ClassVar[bool] = False
    time_unit: ClassVar[int] = 1
    handler: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def for_event(self, variables: str, given: Any) -> Codec:
        """Return the codec for the program that sent an event, which may be another one."""
        return self

    @abstractmethod
    def read(self, given: Any) -> AgentEvent:
        """Return an event as the agent sent it.

        Raises:
            ValueError: it is not an event of this agent.
        """

    def kind_of(self, event: str) -> Kind:
        """Return what an event is about.

        Raises:
            ValueError: the agent has no such event.
        """
        if event in self.events:
            return self.events[event]
        if event in self.ignored:
            return "ignored"
        raise ValueError(f"{event!r:.80} is not known")

    def is_mcp(self, tool: str) -> bool:
        """Return whether a tool belongs to an MCP server, by its name."""
        return tool.startswith("mcp__")

    def applies(self, event: AgentEvent, changed: Mapping[str, Any]) -> bool:
        """Return whether the agent uses these arguments if a hook returns them."""
        return False

    def settle(self, event: AgentEvent, answer: Answer) -> Answer:
        """Return the answer without what the agent cannot do."""
        if answer.deny is not None:
            return answer._replace(ask=None, changed=None, allow=False)
        if answer.ask is not None and not self.can_ask:
            return Answer(deny=f"{answer.ask}\n{NO_QUESTION}")
        if answer.changed is not None and not self.applies(event, answer.changed):
            return Answer(deny=NO_CHANGE)
        return answer

    @abstractmethod
    def write(self, event: AgentEvent, answer: Answer) -> CommandOutput:
        """Return a settled answer in the form of the agent."""

    def refuse(self, event: AgentEvent | None, problem: str, details: str) -> CommandOutput:
        """Return the answer to an event that cannot be judged.

        A call is denied, a prompt and a compaction are blocked, and a result is withheld. Where there is nothing to
        prevent, the answer only tells the user: a session that must stop, for example, may stop.

        Args:
            event: the event; ``None`` if it cannot be read.
            problem: what went wrong, for the model.
            details: more about it, only for the user, because an exception may contain secrets.
        """
        message = f"{problem}, so this is not allowed."
        if event is None:
            return denial(message)
        if event.kind == "after_tool":
            withheld = f"Hookline: {problem}, so the result is withheld."
            return self.write(event, Answer(result=with_text(event.result, withheld), note=withheld))
        if event.kind in ("stop", "session_start", "session_end"):
            return CommandOutput(stderr=_bytes(f"Hookline: {problem}\n"))
        return self.write(event, Answer(deny=message))

    def settings(self, command: str, events: Iterable[Kind], seconds: int) -> str:
        """Return the settings that make the agent start a command at these events.

        The form is that of Claude Code, which several agents use.

        Args:
            command: the command, for a shell.
            events: what the hooks judge.
            seconds: how long the agent must wait.
        """
        import json

        handler = {"type": "command", "command": command, "timeout": seconds * self.time_unit, **self.handler}
        return json.dumps({"hooks": {name: [{"hooks": [handler]}] for name in self.names_of(events)}}, indent=2)

    def names_of(self, kinds: Iterable[Kind]) -> list[str]:
        """Return the agent's names of events."""
        wanted = set(kinds)
        return [name for name, kind in self.events.items() if kind in wanted]


def renamed(arguments: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments under other names.

    Raises:
        ValueError: an argument is given under both names, so that nobody can say which one counts.
    """
    found = {names.get(name, name): value for name, value in arguments.items()}
    if len(found) < len(arguments):
        raise ValueError(f"an argument is given under two names: {', '.join(sorted(arguments))}")
    return found


def denial(reason: str) -> CommandOutput:
    """Return the answer that prevents something in every agent that starts commands.

    All of them obey exit code 2 with a reason on stderr and nothing on stdout. The first word is there because Gemini
    CLI reads JSON on stderr as an answer, and others ignore exit code 2 without a reason.
    """
    return CommandOutput(b"", _bytes(f"{PREFIX}{reason.strip() or 'a hook does not allow this.'}\n"), BLOCKED)


def json_output(value: Mapping[str, Any]) -> CommandOutput:
    """Return an answer that is a JSON object."""
    import json

    return CommandOutput(json.dumps(value).encode())


def notice_output(notice: str) -> CommandOutput:
    """Return an answer that only shows a text to the user, if there is one."""
    return CommandOutput(stderr=_bytes(f"{notice}\n") if notice else b"")


def prevented(answer: Answer) -> str | None:
    """Return all reasons of an answer in one text, for an agent that obeys only exit code 2; ``None`` if there is none.

    A changed result counts, because the agent would show the original one.
    """
    parts = [text for text in (answer.stop, answer.deny, answer.go_on, answer.note) if text is not None]
    if answer.result is not SAME:
        text = text_of(answer.result)
        if not any(part and part in text for part in parts):
            parts.append(f"A hook changed this result to:\n{text}")
    return "\n".join(dict.fromkeys(parts)) if parts else None


def text_of(value: Any) -> str:
    """Return a result as text."""
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cut(text: str) -> str:
    """Return a text that is short enough for an answer."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def with_text(response: Any, content: Any) -> Any:
    """Return a tool's response with another content, in its own shape, because Claude Code rejects other shapes.

    If the new content is text, it takes the place of the longest text in the response, and all others are emptied. If
    it is the whole response, written as JSON, each of its texts goes back to its own place.
    """
    if not isinstance(content, str) or isinstance(response, str):
        return content
    try:
        if (whole := _same_shape(response, content)) is not None:
            return whole
        places = list(_texts(response, ()))
        if not places:
            return content
        main = max(places, key=lambda place: len(place[1]))[0]
        return _filled(response, (), main, content)
    except RecursionError:  # nested so deeply, perhaps to get past the hooks
        return content


def _same_shape(response: Any, content: str) -> Any:
    """Return a text as JSON if it has the shape of the response: a hook changed words in it; ``None`` otherwise."""
    import json

    if not isinstance(response, (dict, list)):
        return None
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if _shape(found) == _shape(response) else None


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item if key in _KEPT else _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return type(value)


def _texts(value: Any, place: tuple[Any, ...]) -> Any:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in _KEPT:
                yield from _texts(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*place, index))


def _filled(value: Any, place: tuple[Any, ...], main: tuple[Any, ...], text: str) -> Any:
    if isinstance(value, str):
        return text if place == main else ""
    if isinstance(value, dict):
        return {key: item if key in _KEPT else _filled(item, (*place, key), main, text) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, (*place, index), main, text) for index, item in enumerate(value)]
    return value


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
