"""Restrict the actions of agents on tickets, and ask for approval where a ticket requires it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

from .._base.text import did_you_mean
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_name_or_names, check_path
from .._toolbox.tickets import PREFIX, ApprovalChecks, actor_of
from ..stores.tickets import TicketBoard, TicketError, TicketRow
from ..tools.registry import ToolView
from .roles import roles_of_user

ACTIONS = ("create", "assign", "list", "show", "start", "complete", "comment", "release")
"""Actions of agents on tickets; ``assign`` means to create a ticket for another agent."""
ROLE = "role:"


class TicketRules:
    """Blocks ticket actions that an agent may not take, and asks for approval of tickets with the tier ``ask``.

    An agent is identified by its personality, if it has one, else by its name. A rule ``role:NAME`` is about the user's
    role in ``ctx.state.metadata`` instead. Only the assignee may complete a ticket.

    Example::

        TicketRules("tickets.db", may={"create": ["lead"], "assign": ["lead"], "release": ["role:admin"]})

    Args:
        board: a ``TicketBoard``, or the path of its file.
        may: actions (``create``, ``assign``, ``list``, ``show``, ``start``, ``complete``, ``comment``, ``release``),
            each with globs of the agents that may take it. All agents may take actions that are not listed.
        key: the metadata key of the user's role, or list of roles.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100
    tools = f"{PREFIX}*"

    def __init__(
        self,
        board: TicketBoard | str | os.PathLike[str],
        may: Mapping[str, str | Iterable[str]] | None = None,
        *,
        key: str = "user_role",
    ) -> None:
        if not isinstance(board, TicketBoard):
            board = TicketBoard(check_path(board, "board must be a TicketBoard, or the path of its file"))
        if may is not None and not isinstance(may, Mapping):
            raise RegistrationError(f'may must be a mapping such as {{"create": ["lead"]}}, not {may!r:.80}')
        for action in may or {}:
            if action not in ACTIONS:
                hint = did_you_mean(action, ACTIONS) if isinstance(action, str) else ""
                raise RegistrationError(f"{action!r:.80} is not a ticket action.{hint}")
        if not isinstance(key, str) or not key:
            raise RegistrationError(f"key must be a metadata key, not {key!r:.80}")
        self.board, self.key = board, key
        self.may = {action: check_name_or_names(globs, f"may[{action!r}]", 0) for action, globs in (may or {}).items()}

    @property
    def own_files(self) -> tuple[str, ...]:
        """Files that the agent's tools must not write: the board's file, and the files that SQLite keeps beside it."""
        path = self.board.path
        name = escape(os.path.basename(path))
        return () if path == ":memory:" else (path, f"{name}-wal", f"{name}-shm", f"{name}-journal")

    def covers(self, tool: ToolView) -> bool:
        """Whether the hook judges calls of the tool: actions that it restricts, and the start and end of a ticket."""
        return tool.name.removeprefix(PREFIX) in {"start", "complete", *self.may}

    async def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Block the action, or ask for approval, unless the agent may do it."""
        who, action = actor_of(ctx), request.name.removeprefix(PREFIX)
        actions = [action]
        if action == "create" and request.arguments.get("assignee") not in ("", None, who):
            actions.append("assign")
        for wanted in actions:
            if wanted in self.may and not self._allows(ctx, who, self.may[wanted]):
                allowed = " or ".join(self.may[wanted]) or "nobody"
                message = f"{who} may not {wanted} tickets: only {allowed} may. Go on without it."
                return HookResult.block(message, reason=f"not for {who}")
        return await self._judge(ctx, who, action, request) if action in ("start", "complete") else None

    async def _judge(self, ctx: Any, who: str, action: str, request: ToolCallRequest) -> HookResult | None:
        seen: set[tuple[str, str]] = ctx.own_state(ApprovalChecks, set)
        try:
            ticket: TicketRow = await in_thread(self.board.get, request.arguments.get("id"))
        except TicketError:
            seen.add((self.board.path, ""))
            return None  # the tool reports the error
        seen.add((self.board.path, ticket.id))
        if action == "complete" and ticket.assignee not in ("", who):
            message = f"{ticket.id} is {ticket.assignee}'s: only the assignee can complete it."
            return HookResult.block(message, reason="not the assignee")
        if ticket.tier != "ask":
            return None
        summary = f" ({request.arguments.get('summary', '')!s:.500})" if action == "complete" else ""
        return HookResult.ask(f"May {who} {action} {ticket.id}: {ticket.title}?{summary}", reason="its tier is ask")

    def _allows(self, ctx: Any, who: str, globs: tuple[str, ...]) -> bool:
        roles = [role for role in roles_of_user(ctx, self.key) if isinstance(role, str)]
        return any(
            any(fnmatchcase(role, glob.removeprefix(ROLE)) for role in roles)
            if glob.startswith(ROLE)
            else fnmatchcase(who, glob)
            for glob in globs
        )
