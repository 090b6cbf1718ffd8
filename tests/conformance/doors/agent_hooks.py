"""AGENT-HOOKS: the rules of a vector as interceptors of that specification, in Hookline's loop."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agent_hooks import Decision, Transform, Verdict

from hookline.adapters.agent_hooks import AgentHooks

from ..build import Scene, story_of
from ..vectors import RuleData, Story, Vector
from .base import Door, events_of

MOMENTS = {
    "on_run_start": "input",
    "before_llm": "pre_model_call",
    "after_llm": "post_model_call",
    "before_tool": "pre_tool_call",
}


class Interceptor:
    """A rule of a vector: it denies, or changes the arguments of a call."""

    def __init__(self, rule: RuleData) -> None:
        self.rule = rule

    def intercept(self, context: dict[str, Any]) -> Verdict:
        """Return the verdict about a moment."""
        rule = self.rule
        if context["interception_point"] != MOMENTS[rule.point]:
            return Verdict.allow()
        call = context.get("tool_call", {})
        if rule.tools and not any(fnmatchcase(call["name"], glob) for glob in rule.tools):
            return Verdict.allow()
        if any(call["args"] != wanted for field, wanted in rule.when.items() if field == "arguments"):
            return Verdict.allow()
        if rule.verb == "replace":
            ((name, value),) = rule.value["arguments"].items()
            return Verdict(Decision.TRANSFORM, transform=Transform(f"$target.{name}", value))
        return Verdict.deny(reason="org:rule", message=rule.value)


class AgentHooksDoor(Door):
    """``AgentHooks`` with an interceptor for each rule."""

    id = "agent-hooks"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        scene = Scene(vector, folder)
        scene.hooks = [AgentHooks(*map(Interceptor, vector.hooks))]
        return scene.executed(story_of(await events_of(scene.agent())))
