"""A roster of personalities, which chooses the agent of each conversation."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, ItemsView, Iterator, Mapping, ValuesView
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from .._base.frozen import EMPTY, Frozen, freeze, plain
from .._base.text import did_you_mean, error_text
from .._kernel.errors import CallRefusedError, HookError, HooklineError
from .._kernel.hook import Hook, hook
from .._kernel.points import ON_RUN_END
from .._kernel.registry import HookRegistry, HookStack, fire_outside_run
from .._kernel.results import HookResult, Verdict
from .._kernel.scope import scope_of
from .._kernel.state import AgentResult
from .._run.agent import Agent
from .._run.context import AgentContext
from .._run.environment import make_id
from .._run.options import RunOptions
from .._run.run import Run
from .._run.session import Session
from ..config.errors import ConfigError
from ..models.protocol import Model
from ..providers.factory import get_model
from .errors import HandoffRefusedError, SwitchRefusedError
from .personality import Personality
from .personality_folder import Models, PersonalityFolder, change_personality, log, make_agent, make_hooks
from .points import PERSONALITY_SWITCHED, PersonalitySwitched
from .team import AgentPerSession, Team, restore_guards, session_of

DEFAULT = "default"
"""The name for the first personality, unless a personality has that id."""

_MAX_CHANGED = 256

Fire = Callable[[PersonalitySwitched], Awaitable[Verdict]]
AskHooks = Callable[[Fire, Session, str, str], Awaitable[tuple[str, Mapping[str, Any]]]]
"""Fires ``personality_switched`` (arguments: fire, session, from, to), and returns an id and changes of its fields."""


class SlashCommand(Frozen, frozen=True):
    """A slash command of a conversation: ``call(session, argument)`` returns the answer.

    A ``read_only`` command changes nothing without an argument, so it does not have to wait for the current run.
    """

    help: str
    call: Callable[[Session, str], Awaitable[str]]
    read_only: bool = False


class Roster(AgentPerSession, Mapping[str, Agent]):
    """The personalities in a folder, as agents derived from a base agent, whose hooks apply to all of them.

    It runs like an agent: each run uses the personality of its session. Changed files take effect in the next run.

    Example:
        >>> roster = Roster(agent, "personalities", first="clerk")
        >>> roster.run("Good morning.", session=session)
        >>> await roster.switch(session, "expert")

    Args:
        base: the agent that the personalities are derived from; it runs in sessions without a personality.
        folder: the folder of the personality files.
        first: the personality of new sessions; by default the base agent.
        home: the folder to import modules from; by default the working folder.
        models: returns models by name.

    Raises:
        ConfigError: the folder does not exist, or the first personality cannot be used.
    """

    def __init__(
        self,
        base: Agent[Any, Any],
        folder: str | Path,
        *,
        first: str = "",
        home: Path | None = None,
        models: Models = get_model,
    ) -> None:
        self.base, self.hooks, self.folder = base, base.hooks, Path(folder)
        self._home = Path.cwd() if home is None else home
        known: dict[str, Model] = {}

        def model(name: str) -> Model:
            if name not in known:
                known[name] = models(name)
            return known[name]

        self._models: Models = model
        self._team = RosterTeam(lambda: self._folder, self._ask_hooks)
        self._folder = PersonalityFolder(
            base, self.folder, home=self._home, models=model, first=first, tools=self._tools
        )
        self.first = first
        if first and first not in self._folder.loaded:
            why = "; ".join(self._folder.problems.values())
            raise ConfigError(f"personality: {self._unknown(first)}{f' ({why})' if why else ''}")
        about = "list the personalities; /personality NAME switches to another"
        self.commands = {"personality": SlashCommand(about, self._command, read_only=True)}
        self._lock = threading.Lock()
        self._switching: set[str] = set()
        self._changed: OrderedDict[tuple[Any, ...], tuple[Any, Personality, Agent[Any, Any]]] = OrderedDict()

    # The mapping.

    def __getitem__(self, id: str) -> Agent[Any, Any]:
        self._folder.refresh()
        return self._folder.loaded[id].agent

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())

    def items(self) -> ItemsView[str, Agent[Any, Any]]:
        """Return the current agents by id."""
        return self._current().items()

    def values(self) -> ValuesView[Agent[Any, Any]]:
        """Return the current agents."""
        return self._current().values()

    def _current(self) -> dict[str, Agent[Any, Any]]:
        self._folder.refresh()
        return {id: each.agent for id, each in self._folder.loaded.items()}

    @property
    def personalities(self) -> dict[str, Personality]:
        """The current personalities by id."""
        self._folder.refresh()
        return {id: each.personality for id, each in self._folder.loaded.items()}

    @property
    def problems(self) -> dict[str, str]:
        """The errors in files, by path. The last valid version of such a file is still used."""
        self._folder.refresh()
        return dict(self._folder.problems)

    # Sessions.

    def active(self, session: Session) -> Personality:
        """Return the personality of a session, with the changes made for this session.

        Raises:
            ConfigError: the changes are no longer valid.
        """
        self._folder.refresh()
        return self._choose(session)[0]

    def agent_for(self, session: Session) -> Agent[Any, Any]:
        """Return the agent of the next run in this session.

        Raises:
            ConfigError: the changes made for this session are no longer valid.
        """
        self._folder.refresh()
        return self._choose(session)[1]

    def hooks_for(self, session: Session) -> HookRegistry:
        """Return the hooks of a session: those of the base, and the guards of its personality.

        Raises:
            ConfigError: the changes made for this session are no longer valid.
        """
        return self.agent_for(session).hooks

    def plugins_for(self, session: Session) -> tuple[str, ...] | None:
        """Return the plugins whose hooks apply in a session; ``None`` for all."""
        return self.agent_for(session).allowed_plugins

    def speaker_for(self, session: Session) -> str:
        """Return the name that users see in a session; empty for the base agent."""
        personality = self.active(session)
        return personality.display_name if personality.id else ""

    def follow_up(self, session: Session, result: AgentResult[Any]) -> str | None:
        """Return the task of the run that must follow this one because of a handoff; ``None`` without a handoff."""
        return self._team.follow_up(session, result)

    def resume_handoffs(self, session: Session, count: int) -> None:
        """Continue a session in which another process has handed over ``count`` times since the user's message."""
        self._team.resume_handoffs(session, count)

    async def switch(self, session: Session, to: str) -> Personality:
        """Switch a session to another personality, from its next run on.

        ``personality_switched`` fires with the guards and plugins of the new personality. Its hooks may name another
        one, or change fields of it for this session. The session changes only after all hooks have agreed.

        Args:
            session: the session.
            to: the id of a personality; ``default`` for the first one.

        Raises:
            SwitchRefusedError: there is no such personality, a hook failed, or a change by a hook is invalid.
        """
        self._folder.refresh()
        target = self._find(to)
        before = session.personality_id or self.first
        if target == before and not session.personality_changes:
            return self.active(session)
        session.id = session.id or make_id("session")
        with self._lock:
            if session.id in self._switching:
                raise SwitchRefusedError("another switch is in progress in this session: try again later")
            self._switching.add(session.id)
        try:
            found, changes = await self._ask_hooks(self._fire(session, target), session, before, target)
            session.personality_id, session.personality_changes = found, changes
            session.forget_handoffs()
            return self.active(session)
        except CallRefusedError as error:
            raise SwitchRefusedError(f"{_rejected(target)}: {error_text(error)}") from error
        finally:
            with self._lock:
                self._switching.discard(session.id)

    def _fire(self, session: Session, target: str) -> Fire:
        found = self._folder.loaded.get(target)
        agent = self.base if found is None else found.agent
        plugins, hooks = agent.allowed_plugins, agent.hooks
        ctx = AgentContext(session=session, allowed_plugins=plugins)
        return lambda payload: hooks.fire(PERSONALITY_SWITCHED, payload, ctx=ctx, allowed_plugins=plugins)

    async def _ask_hooks(self, fire: Fire, session: Session, before: str, target: str) -> tuple[str, Mapping[str, Any]]:
        """Fire ``personality_switched``, and return the id to switch to and the changes of its fields."""
        rejected = _rejected(target)
        try:
            verdict = await fire(PersonalitySwitched(session.id, target, before))
        except HookError as error:
            raise SwitchRefusedError(f"{rejected}: {error_text(error)}") from error
        given = getattr(verdict.value, "personality", None)
        if given is None:
            return target, EMPTY
        changes = {"id": given} if isinstance(given, str) else dict(given)
        try:
            found = self._find(changes.get("id", target))
            if changes.keys() <= {"id"}:
                return found, EMPTY
            kept = freeze({**changes, "id": found})
            self._with_changes(found, kept)  # raises if the changes are invalid
        except (HooklineError, TypeError, ValueError) as error:
            raise SwitchRefusedError(
                f"{rejected}: personality_switched gave {given!r:.80}: {error_text(error)}"
            ) from error
        return found, kept

    async def _command(self, session: Session, argument: str) -> str:
        """Handle ``/personality`` and ``/personality NAME``, and return the answer."""
        name = argument.strip()
        if not name:
            return self._listing(session)
        try:
            now = await self.switch(session, name)
        except HooklineError as error:
            return _sentence(error_text(error))
        return f"Switched to {now.display_name}."

    def _listing(self, session: Session) -> str:
        rows = {id: each.description for id, each in self.personalities.items()}
        now = session.personality_id if session.personality_id in rows else self.first
        if not self.first and DEFAULT not in rows:
            rows = {"": "the agent of the settings", **rows}
        lines = [
            f"{id or DEFAULT}{f': {text}' if text else ''}{' (active)' if id == now else ''}"
            for id, text in rows.items()
        ]
        lines.append("/personality NAME switches to another.")
        if self.first and now != self.first and DEFAULT not in rows:
            lines[-1] += f" /personality {DEFAULT} switches back to {self.first}."
        return "\n".join(lines)

    # Choosing the agent.

    def _tools(self, personality: Personality) -> tuple[Any, ...]:
        """Return ``delegate`` and ``handoff``, for personalities with delegates."""
        return (self._team,) if personality.delegates else ()

    def _prepare(self, options: RunOptions[Any]) -> tuple[Agent[Any, Any], Session, RunOptions[Any]]:
        """Return the agent of a run, its session, and its options including the session."""
        session = session_of(options)
        self._folder.refresh()
        restore_guards(session, self._team.members)
        full: RunOptions[Any] = {**options, "session": session}
        if note := self._reset_deleted(session):
            full["hooks"] = (*(options.get("hooks") or ()), _add_note(note))
        return self._choose(session)[1], session, full

    def _reset_deleted(self, session: Session) -> str:
        """Switch a session whose personality was deleted to the first personality, and return a note for the user."""
        deleted = session.personality_id
        if not deleted or deleted in self._folder.loaded:
            session.personality_id = deleted or self.first
            return ""
        session.personality_id, session.personality_changes = self.first, EMPTY
        log.warning(
            "session %s: the personality %s was deleted; continuing with %s", session.id, deleted, self.first or DEFAULT
        )
        return f"(The personality {deleted} was deleted; {self._personality(self.first).display_name} answers now.)"

    def _choose(self, session: Session) -> tuple[Personality, Agent[Any, Any]]:
        id = session.personality_id or self.first
        id = id if id in self._folder.loaded else self.first
        changes = session.personality_changes
        if changes and changes.get("id") == id:
            return self._with_changes(id, changes)
        found = self._folder.loaded.get(id)
        return (found.personality, found.agent) if found is not None else (self._personality(""), self.base)

    def _with_changes(self, id: str, changes: Mapping[str, Any]) -> tuple[Personality, Agent[Any, Any]]:
        """Return a personality with the changes of a session; sessions with the same changes share it."""
        found = self._folder.loaded.get(id)
        key = (id, msgspec.json.encode(plain(changes), order="sorted"))
        made_of = (found, self._folder.base_state)
        with self._lock:
            known = self._changed.get(key)
            if known is not None and known[0] == made_of:
                self._changed.move_to_end(key)
                return known[1], known[2]
        where = f"personality {id or DEFAULT}, as changed in this session"
        whole = self._personality(id)
        personality = change_personality(whole, changes, where)
        own = personality.replace(guards=personality.guards[len(whole.guards) :])
        try:
            hooks = make_hooks(self.base.hooks if found is None else found.hooks, own, self._home)
            extra = self._tools(personality)
            agent = make_agent(self.base, personality, hooks, self._home, self._models, extra)
        except HooklineError as error:
            raise ConfigError(f"{where}: {error_text(error)}") from error
        with self._lock:
            self._changed[key] = (made_of, personality, agent)
            while len(self._changed) > _MAX_CHANGED:
                self._changed.popitem(last=False)
        return personality, agent

    def _personality(self, id: str) -> Personality:
        found = self._folder.loaded.get(id)
        return found.personality if found is not None else Personality("", self.base.name, self.base.description)

    def _find(self, name: Any) -> str:
        """Return the id of a personality by its name; upper and lower case are the same.

        Raises:
            SwitchRefusedError: there is no such personality.
        """
        loaded = self._folder.loaded
        if not isinstance(name, str):
            raise SwitchRefusedError(f"a personality must be named by its id, not by {type(name).__name__}")
        if name in loaded:
            return name
        for id in loaded:
            if id.casefold() == name.casefold():
                return id
        if name in (DEFAULT, ""):
            return self.first
        raise SwitchRefusedError(self._unknown(name))

    def _unknown(self, name: str) -> str:
        loaded = self._folder.loaded
        known = f"There are {', '.join(loaded)}" if loaded else f"There are none in {self._folder.folder}"
        return f"there is no personality {name!r:.80}.{did_you_mean(name, loaded)} {known}"


def _rejected(target: str) -> str:
    return f"the switch to {target or DEFAULT} was rejected"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', ')')) else '.'}"


def _add_note(note: str) -> Hook:
    @hook(ON_RUN_END, name="personality_note", on_failure="open")
    def add_note(ctx: Any, result: AgentResult[Any]) -> HookResult:
        return HookResult.replace(result.replace(reply=f"{note}\n\n{result.reply}".strip()))

    return add_note


class RosterTeam(Team):
    """The team of a roster: each personality may delegate and hand over to its ``delegates``.

    Args:
        folder: returns the personalities; called when the team is first used.
        ask_hooks: asks the hooks of ``personality_switched``.
    """

    def __init__(self, folder: Callable[[], PersonalityFolder], ask_hooks: AskHooks) -> None:
        super().__init__(_Agents(folder), may=self._is_delegate)
        self._folder, self._ask = folder, ask_hooks
        self._agreed: WeakKeyDictionary[Session, tuple[str, Mapping[str, Any]]] = WeakKeyDictionary()

    def _is_delegate(self, who: str, whom: str) -> bool:
        found = self._folder().loaded.get(who)
        return found is not None and who != whom and any(fnmatchcase(whom, d) for d in found.personality.delegates)

    async def switch(self, ctx: AgentContext, to: str) -> str:
        """Ask the hooks of ``personality_switched``, and return the personality that takes over."""
        try:
            found, changes = await self._ask(
                lambda payload: self._fire(ctx, to, payload), ctx.session, ctx.agent_name, to
            )
        except SwitchRefusedError as refused:
            raise HandoffRefusedError(error_text(refused)) from refused
        if not found:
            raise HandoffRefusedError(f"{to} cannot take over: a hook switched to the base agent")
        self._agreed[ctx.session] = found, changes
        return found

    async def _fire(self, ctx: AgentContext, to: str, payload: PersonalitySwitched) -> Verdict:
        """Fire for the hooks of the run, then for those of plugins that only the new personality uses."""
        verdict = await ctx.fire(PERSONALITY_SWITCHED, payload)
        loaded = self._folder().loaded
        mine, new = ctx.allowed_plugins, loaded[to].personality.plugins
        if mine is None or ctx.agent_name not in loaded or mine != loaded[ctx.agent_name].personality.plugins:
            # either all hooks were called, or the caller of the run chose its plugins, and a switch must not add any
            return verdict
        stack = self._folder().base.hooks.stack.only(new)
        later = HookStack(*(tuple(e for e in layer if e.plugin and e.plugin not in mine) for layer in stack.layers))
        outside = AgentContext(session=ctx.session, allowed_plugins=new)
        more = await fire_outside_run(
            later.chain(PERSONALITY_SWITCHED), PERSONALITY_SWITCHED, payload, scope_of(outside)
        )
        return more if getattr(verdict.value, "personality", None) is None else verdict

    def _on_run_end(self, ctx: Any, result: AgentResult[Any]) -> None:
        super()._on_run_end(ctx, result)
        found, changes = self._agreed.pop(ctx.session, ("", EMPTY))
        handoffs = self._handoffs.get(ctx.session)
        if handoffs is not None and handoffs.run_id == ctx.run_id:  # the run handed over
            ctx.session.personality_changes = changes if found == ctx.session.personality_id else EMPTY

    def _start(self, task: str, ctx: AgentContext, session: Session) -> Run[Any]:
        self._folder().refresh()
        return super()._start(task, ctx, session)


class _Agents(Mapping[str, Agent]):
    """The loaded agents of a folder. Files are not checked for changes, so this is fast enough for every model call."""

    def __init__(self, folder: Callable[[], PersonalityFolder]) -> None:
        self._folder = folder

    def __getitem__(self, id: str) -> Agent[Any, Any]:
        return self._folder().loaded[id].agent

    def __iter__(self) -> Iterator[str]:
        return iter(self._folder().loaded)

    def __len__(self) -> int:
        return len(self._folder().loaded)
