"""List the accepted skills in the system message."""

from __future__ import annotations

import logging
import os
from typing import Any

from .._kernel.payloads import ModelRequest
from .._kernel.points import BEFORE_LLM
from .._kernel.results import HookResult
from .._kernel.validation import check_integer, check_method, check_path
from ..stores.skills import SkillStore, skill_store_at
from ._support.messages import add_system_text

log = logging.getLogger("hookline")

TOOL = "read_skill"

_EXPECTED = "folder must be a SkillStore, its folder, or its database"
_MAX_DESCRIPTION = 200


def check_skill_store(folder: Any) -> SkillStore:
    """Open the skills in a folder or a database, or check a given store."""
    if isinstance(folder, (str, os.PathLike)):
        return skill_store_at(check_path(folder, _EXPECTED))
    check_method(folder, "propose", _EXPECTED)
    return folder  # type: ignore[no-any-return]


class SkillsHook:
    """Lists accepted skills, by name and description, in the system message of every step.

    The agent reads a skill with the tool ``read_skill``, so give it the store too: ``tools=[store]``. In runs without
    that tool the hook does nothing. The folder is read once in each run: a skill that is accepted meanwhile is listed
    from the next run on. A skill that cannot be read is skipped. If the folder cannot be read, the error is reported
    and the run continues without skills.

    Example::

        store = SkillStore("skills")
        agent = Agent("a", llm=model, tools=[store], hooks=[SkillsHook(store)])

    Args:
        folder: a ``SkillStore``, its folder, or the file (``.db``) or address of its database.
        max_skills: maximum number of skills to list, in order of their names; the others can still be read.
        max_chars: maximum length of the list.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({BEFORE_LLM})
    phase = "rewrite"
    priority = 80
    on_failure = "open"

    def __init__(self, folder: Any = "skills", *, max_skills: int = 50, max_chars: int = 6000) -> None:
        self.store = check_skill_store(folder)
        self.max_skills, self.max_chars = check_integer(max_skills, "max_skills"), check_integer(max_chars, "max_chars")
        self._warned = False

    @property
    def own_files(self) -> tuple[str, ...]:
        """Files that the agent's tools must not write, because only a person may accept a skill."""
        return self.store.own_files

    async def __call__(self, point: str, ctx: Any, request: ModelRequest) -> HookResult | None:
        """Add the list to one request."""
        if all(tool.name != TOOL for tool in request.tools):
            if not self._warned and not request.ids.parent_run_id and request.purpose == "step":
                self._warned = True
                log.warning("SkillsHook does nothing: the agent has no tool %s; give it tools=[SkillStore(...)]", TOOL)
            return None
        return await add_system_text(self, ctx, request, self._text)

    def _text(self) -> str:
        skills = self.store.list()
        if not skills:
            return ""
        lines, room = [f"Skills: before you do what one of them is for, read it with {TOOL}."], self.max_chars
        for skill in skills[: self.max_skills]:
            about = skill.description
            line = f"- {skill.name}: {about if len(about) <= _MAX_DESCRIPTION else f'{about[:_MAX_DESCRIPTION]}…'}"
            room -= len(line) + 1
            if room < 0:
                break
            lines.append(line)
        left = len(skills) - len(lines) + 1
        return "\n".join([*lines, *([f"({left} more: {TOOL} with another name shows them)"] if left else [])])
