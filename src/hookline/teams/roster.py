"""Who speaks in which conversation: the personalities of a folder, live, each an agent."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, ItemsView, Iterator, Mapping, ValuesView
from pathlib import Path
from typing import Any

import msgspec

from .._base.frozen import EMPTY, Frozen, freeze, plain
from .._base.text import did_you_mean, error_text
from .._kernel.errors import CallRefusedError, HookError, HooklineError
from .._kernel.hook import Hook, hook
from .._kernel.points import ON_RUN_END
from .._kernel.registry import HookRegistry
from .._kernel.results import HookResult
from .._kernel.state import AgentResult
from .._run.agent import Agent
from .._run.context import AgentContext
from .._run.environment import make_id
from .._run.options import RunOptions
from .._run.session import Session
from ..config.errors import ConfigError
from ..models.protocol import Model
from ..providers.names import get_model
from .agents import Models, changed, make_agent, make_hooks
from .crew import Crew, Keep, log
from .deputies import Deputies, Fire
from .errors import SwitchRefusedError
from .personalities import Personality
from .points import PERSONALITY_SWITCHED, PersonalitySwitched
from .turns import Turns, session_of

DEFAULT = "default"
"""What people call the personality to begin with, unless one has that id."""

_MANY = 256


class SlashCommand(Frozen, frozen=True):
    """A slash command of a conversation: ``call(session, argument)`` gives the answer.

    ``read_only``: without an argument it changes nothing, so it does not have to wait for the current run.
    """

    help: str
    call: Callable[[Session, str], Awaitable[str]]
    read_only: bool = False


class Roster(Turns, Mapping[str, Agent]):
    """The personalities in a folder, by id, as agents on top of a base agent, whose hooks hold for all of them.

    It answers for an agent: a run is that of the personality its session is in. Changed files count from the next run.

    Args:
        base: the agent that personalities are made on top of; it speaks where there is none.
        folder: the folder of the personality files.
        first: the personality to begin with; the base agent if left out.
        home: the folder that modules named in the files are looked for in; the working folder if left out.
        models: gives the model of a name.
        keep: gives hooks that keep tools from changing files; for code that the files name elsewhere.

    Raises:
        ConfigError: there is no such folder, or the first personality cannot be used.
    """

    def __init__(
        self,
        base: Agent[Any, Any],
        folder: str | Path,
        *,
        first: str = "",
        home: Path | None = None,
        models: Models = get_model,
        keep: Keep | None = None,
    ) -> None:
        self.base, self.hooks, self.folder = base, base.hooks, Path(folder)
        self._home = Path.cwd() if home is None else home
        known: dict[str, Model] = {}

        def model(name: str) -> Model:
            if name not in known:
                known[name] = models(name)
            return known[name]

        self._models: Models = model
        self._team = Deputies(lambda: self._crew, self._agreed)
        self._crew = Crew(
            base, self.folder, home=self._home, models=model, keep=keep, first=first, tools=self._tools
        )  # fmt: skip
        self.first = first
        if first and first not in self._crew.members:
            why = "; ".join(self._crew.problems.values())
            raise ConfigError(f"personality: {self._unknown(first)}{f' ({why})' if why else ''}")
        about = "show who can speak; /personality NAME has another one speak"
        self.commands = {"personality": SlashCommand(about, self._command, read_only=True)}
        self._lock = threading.Lock()
        self._switching: set[str] = set()
        self._changed: OrderedDict[tuple[Any, ...], tuple[Any, Personality, Agent[Any, Any]]] = OrderedDict()

    # The mapping.

    def __getitem__(self, id: str) -> Agent[Any, Any]:
        self._crew.refresh()
        return self._crew.members[id].agent

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def items(self) -> ItemsView[str, Agent[Any, Any]]:
        """All as they are now."""
        return self._now().items()

    def values(self) -> ValuesView[Agent[Any, Any]]:
        """All as they are now."""
        return self._now().values()

    def _now(self) -> dict[str, Agent[Any, Any]]:
        self._crew.refresh()
        return {id: member.agent for id, member in self._crew.members.items()}

    @property
    def personalities(self) -> dict[str, Personality]:
        """What the files say, by id."""
        self._crew.refresh()
        return {id: member.personality for id, member in self._crew.members.items()}

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with files, by path; where there was a good one before, it is still used."""
        self._crew.refresh()
        return dict(self._crew.problems)

    # Conversations.

    def active(self, session: Session) -> Personality:
        """The personality of a conversation, with what was changed about it there.

        Raises:
            ConfigError: what was changed there cannot be used any more.
        """
        self._crew.refresh()
        return self._speaker(session)[0]

    def agent_for(self, session: Session) -> Agent[Any, Any]:
        """The agent that the next run in this session is of.

        Raises:
            ConfigError: what was changed about its personality there cannot be used any more.
        """
        self._crew.refresh()
        return self._speaker(session)[1]

    def hooks_for(self, session: Session) -> HookRegistry:
        """The hooks that are asked in a conversation: those of the base, and the guards of its personality.

        Raises:
            ConfigError: what was changed about its personality there cannot be used any more.
        """
        return self.agent_for(session).hooks

    def plugins_for(self, session: Session) -> tuple[str, ...] | None:
        """The plugins whose hooks take part in a conversation; ``None`` for all."""
        return self.agent_for(session).allowed_plugins

    def speaker_for(self, session: Session) -> str:
        """The name that people are shown in a conversation; empty where the base agent speaks."""
        personality = self.active(session)
        return personality.shown if personality.id else ""

    def follow_up(self, session: Session, result: AgentResult[Any]) -> str | None:
        """The task of a run that is to follow this one at once, because it handed the conversation over."""
        return self._team.follow_up(session, result)

    async def switch(self, session: Session, to: str) -> Personality:
        """Have another personality speak in a conversation, from its next run on.

        ``personality_switched`` fires with guards and plugins of the new one; its handlers may name another, or change
        fields of it for this session. Nothing is changed before they have all agreed.

        Args:
            session: the conversation.
            to: the id of a personality; ``default`` for the first one.

        Raises:
            SwitchRefusedError: there is none of that id, a handler failed, or gave what cannot be used.
        """
        self._crew.refresh()
        target = self._found(to)
        before = session.personality_id or self.first
        if target == before and not session.personality_changes:
            return self.active(session)
        session.id = session.id or make_id("session")
        with self._lock:
            if session.id in self._switching:
                raise SwitchRefusedError("another switch is going on in this conversation: wait for it, then try again")
            self._switching.add(session.id)
        try:
            found, changes = await self._agreed(self._fire(session, target), session, before, target)
            session.personality_id, session.personality_changes = found, changes
            return self.active(session)
        except CallRefusedError as error:
            raise SwitchRefusedError(f"{_undone(target)}: {error_text(error)}") from error
        finally:
            with self._lock:
                self._switching.discard(session.id)

    def _fire(self, session: Session, target: str) -> Fire:
        member = self._crew.members.get(target)
        agent = self.base if member is None else member.agent
        plugins, hooks = agent.allowed_plugins, agent.hooks
        ctx = AgentContext(session=session, allowed_plugins=plugins)
        return lambda payload: hooks.fire(PERSONALITY_SWITCHED, payload, ctx=ctx, allowed_plugins=plugins)

    async def _agreed(
        self, fire: Fire, session: Session, before: str, target: str
    ) -> tuple[str, Mapping[str, Any]]:  # fmt: skip
        """What the handlers make of a switch: an id, and what is changed about it."""
        undone = _undone(target)
        try:
            verdict = await fire(PersonalitySwitched(session.id, target, before))
        except HookError as error:
            raise SwitchRefusedError(f"{undone}: {error_text(error)}") from error
        given = getattr(verdict.value, "personality", None)
        if given is None:
            return target, EMPTY
        changes = {"id": given} if isinstance(given, str) else dict(given)
        try:
            found = self._found(changes.get("id", target))
            if changes.keys() <= {"id"}:
                return found, EMPTY
            kept = freeze({**changes, "id": found})
            self._with_changes(found, kept)  # what cannot be used shows now
        except (HooklineError, TypeError, ValueError) as error:
            raise SwitchRefusedError(
                f"{undone}: personality_switched gave {given!r:.80}: {error_text(error)}"
            ) from error
        return found, kept

    async def _command(self, session: Session, argument: str) -> str:
        """``/personality`` and ``/personality NAME``."""
        name = argument.strip()
        if not name:
            return self._listing(session)
        try:
            now = await self.switch(session, name)
        except HooklineError as error:
            return _sentence(error_text(error))
        return f"{now.shown} speaks now."

    def _listing(self, session: Session) -> str:
        rows = {id: each.description for id, each in self.personalities.items()}
        now = session.personality_id if session.personality_id in rows else self.first
        if not self.first and DEFAULT not in rows:
            rows = {"": "the agent of the settings", **rows}
        lines = [
            f"{id or DEFAULT}{f': {text}' if text else ''}{' (speaks now)' if id == now else ''}"
            for id, text in rows.items()
        ]
        lines.append("/personality NAME has another one speak.")
        if self.first and now != self.first and DEFAULT not in rows:
            lines[-1] += f" /personality {DEFAULT} goes back to {self.first}."
        return "\n".join(lines)

    # Who it is.

    def _tools(self, personality: Personality) -> tuple[Any, ...]:
        """``delegate`` and ``handoff``, for those who may."""
        return (self._team,) if personality.delegates else ()

    def _prepared(self, options: RunOptions[Any]) -> tuple[Agent[Any, Any], Session, RunOptions[Any]]:
        """The agent of a run, its session, and its options with that in them."""
        session = session_of(options)
        self._crew.refresh()
        full: RunOptions[Any] = {**options, "session": session}
        if note := self._settle(session):
            full["hooks"] = (*(options.get("hooks") or ()), _noting(note))
        return self._speaker(session)[1], session, full

    def _settle(self, session: Session) -> str:
        """See that the session is in a personality that exists; what its user is to be told, if it was not."""
        gone = session.personality_id
        if not gone or gone in self._crew.members:
            session.personality_id = gone or self.first
            return ""
        session.personality_id, session.personality_changes = self.first, EMPTY
        log.warning("session %s: the personality %s is gone; %s speaks", session.id, gone, self.first or DEFAULT)
        return f"(The personality {gone} is gone; {self._of(self.first).shown} speaks now.)"

    def _speaker(self, session: Session) -> tuple[Personality, Agent[Any, Any]]:
        id = session.personality_id or self.first
        id = id if id in self._crew.members else self.first
        changes = session.personality_changes
        if changes and changes.get("id") == id:
            return self._with_changes(id, changes)
        member = self._crew.members.get(id)
        return (member.personality, member.agent) if member is not None else (self._of(""), self.base)

    def _with_changes(self, id: str, changes: Mapping[str, Any]) -> tuple[Personality, Agent[Any, Any]]:
        """A personality as it is in one session; sessions with the same changes share it."""
        member = self._crew.members.get(id)
        key, made_of = (id, msgspec.json.encode(plain(changes), order="sorted")), (member, self._crew.based)
        with self._lock:
            known = self._changed.get(key)
            if known is not None and known[0] == made_of:
                self._changed.move_to_end(key)
                return known[1], known[2]
        where = f"personality {id or DEFAULT}, as changed in this session"
        whole = self._of(id)
        personality = changed(whole, changes, where)
        own = personality.replace(guards=personality.guards[len(whole.guards) :])
        try:
            hooks = make_hooks(self.base.hooks if member is None else member.hooks, own, self._home)
            extra = self._tools(personality)
            agent = make_agent(self.base, personality, hooks, self._home, self._models, extra)
        except HooklineError as error:
            raise ConfigError(f"{where}: {error_text(error)}") from error
        with self._lock:
            self._changed[key] = (made_of, personality, agent)
            while len(self._changed) > _MANY:
                self._changed.popitem(last=False)
        return personality, agent

    def _of(self, id: str) -> Personality:
        member = self._crew.members.get(id)
        return member.personality if member is not None else Personality("", self.base.name, self.base.description)

    def _found(self, name: Any) -> str:
        """The id that somebody means.

        Raises:
            SwitchRefusedError: there is none.
        """
        members = self._crew.members
        if not isinstance(name, str):
            raise SwitchRefusedError(f"a personality is named by its id, not by {type(name).__name__}")
        if name in members:
            return name
        for id in members:
            if id.casefold() == name.casefold():
                return id
        if name in (DEFAULT, ""):
            return self.first
        raise SwitchRefusedError(self._unknown(name))

    def _unknown(self, name: str) -> str:
        members = self._crew.members
        known = f"There are {', '.join(members)}" if members else f"There are none in {self._crew.folder}"
        return f"there is no personality {name!r:.80}.{did_you_mean(name, members)} {known}"


def _undone(target: str) -> str:
    return f"the switch to {target or DEFAULT} is undone"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', ')')) else '.'}"


def _noting(note: str) -> Hook:
    @hook(ON_RUN_END, name="personality_note", on_failure="open")
    def tell(ctx: Any, result: AgentResult[Any]) -> HookResult:
        return HookResult.replace(result.replace(reply=f"{note}\n\n{result.reply}".strip()))

    return tell
