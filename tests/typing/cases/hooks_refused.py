"""Mistakes in hooks that type checkers report. Each marked line must be an error, and no other line."""

from typing import Any

from hookline import (
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_START,
    AgentContext,
    HookRegistry,
    HookResult,
    ModelRequest,
    ToolCallRequest,
    ToolCallResult,
    guard,
    hook,
    observer,
)
from hookline.hooks import Hook, Verdict
from hookline.payloads import RunStart
from hookline.points import Point


# Options.
@guard(BEFORE_TOOL, prioritty=3)  # error: mypy, pyright
def misspelt_option(ctx: AgentContext, request: ToolCallRequest) -> None: ...


@hook(BEFORE_TOOL, on_failure="ignore")  # error: mypy, pyright
def unknown_policy(ctx: AgentContext, request: ToolCallRequest) -> None: ...


@observer("before_tool", phase="guard")  # error: mypy, pyright
def two_phases(ctx: AgentContext, request: ToolCallRequest) -> None: ...


@hook(BEFORE_TOOL, BEFORE_LLM, tools=3)  # error: mypy, pyright
def tools_that_are_no_globs(ctx: AgentContext, payload: ToolCallRequest | ModelRequest) -> None: ...


# The payload.
@hook(BEFORE_LLM)  # error: mypy, pyright
def payload_of_another_point(ctx: AgentContext, request: ToolCallRequest) -> None: ...


@guard(BEFORE_LLM)  # error: mypy, pyright
async def payload_of_another_point_async(ctx: AgentContext, request: ToolCallRequest) -> None: ...


@observer(BEFORE_LLM)  # error: mypy, pyright
def payload_of_another_point_with_point(point: str, ctx: Any, request: ToolCallRequest) -> None: ...


@observer(BEFORE_LLM)  # error: mypy, pyright
def payload_of_another_point_with_verdict(ctx: Any, request: ToolCallRequest, verdict: Verdict) -> None: ...


@hook(BEFORE_LLM, BEFORE_TOOL)  # error: mypy, pyright
def payload_of_one_of_two_points(ctx: AgentContext, request: ToolCallRequest) -> None: ...


@guard(BEFORE_LLM, BEFORE_TOOL, ON_RUN_START)  # error: mypy, pyright
def payload_of_two_of_three_points(ctx: AgentContext, payload: ToolCallRequest | RunStart) -> None: ...


@observer(BEFORE_LLM, BEFORE_TOOL, ON_RUN_START, AFTER_TOOL)  # error: mypy, pyright
def payload_of_one_of_four_points(ctx: AgentContext, payload: ToolCallResult) -> None: ...


# The context.
@hook(BEFORE_TOOL)  # error: mypy, pyright
def wrong_context(ctx: int, request: ToolCallRequest) -> None: ...


@guard(BEFORE_TOOL)  # error: mypy, pyright
async def wrong_context_async(ctx: str, request: ToolCallRequest) -> None: ...


@observer(BEFORE_TOOL)  # error: mypy, pyright
def wrong_context_with_point(point: str, ctx: ToolCallRequest, request: ToolCallRequest) -> None: ...


@hook(BEFORE_TOOL)  # error: mypy, pyright
def wrong_order(request: ToolCallRequest, ctx: AgentContext) -> None: ...


@guard(BEFORE_TOOL)  # error: mypy, pyright
def point_last(ctx: AgentContext, request: ToolCallRequest, point: str) -> None: ...


@hook(BEFORE_TOOL)  # error: mypy, pyright
def too_many(ctx: AgentContext, request: ToolCallRequest, more: int) -> None: ...


@hook(BEFORE_TOOL)  # error: mypy, pyright
def too_few(request: ToolCallRequest) -> None: ...


@guard(BEFORE_TOOL)  # error: mypy, pyright
def verdict_of_a_decider(ctx: AgentContext, request: ToolCallRequest, *, verdict: Verdict) -> None: ...


# The return type.
@hook(BEFORE_LLM)  # error: mypy, pyright
def returns_text(ctx: AgentContext, request: ModelRequest) -> str:
    return "no"


@guard(BEFORE_LLM)  # error: mypy, pyright
async def returns_text_async(ctx: AgentContext, request: ModelRequest) -> str:
    return "no"


@guard(BEFORE_TOOL)  # error: mypy, pyright
def returns_a_truth(point: str, ctx: AgentContext, request: ToolCallRequest) -> bool:
    return False


@hook(BEFORE_LLM)  # error: mypy, pyright
def returns_payload_of_another_point(ctx: AgentContext, request: ModelRequest) -> ToolCallRequest:
    return ToolCallRequest("1", "x")


@guard(BEFORE_TOOL)  # error: mypy, pyright
def replaces_in_a_guard(ctx: AgentContext, request: ToolCallRequest) -> ToolCallRequest:
    return request


@observer(AFTER_TOOL)  # error: mypy, pyright
def decides_in_an_observer(ctx: AgentContext, result: ToolCallResult) -> HookResult:
    return HookResult.end("no")


@observer(AFTER_TOOL)  # error: mypy, pyright
async def decides_in_an_async_observer(ctx: AgentContext, result: ToolCallResult) -> HookResult | None:
    return None


class Rules:
    @hook(BEFORE_LLM)  # error: mypy, pyright
    def payload_of_another_point(self, ctx: AgentContext, request: ToolCallRequest) -> None: ...


# Objects that are not hooks.
class NoPoints:
    def __call__(self, point: str, ctx: AgentContext, payload: Any) -> None: ...


class PointsThatAreNoNames:
    points = (1, 2)

    def __call__(self, point: str, ctx: AgentContext, payload: Any) -> None: ...


class CannotBeCalled:
    points = (BEFORE_TOOL,)


@hook(BEFORE_TOOL)
def fine(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    return None


HookRegistry(["no"])  # error: mypy, pyright
HookRegistry([42])  # error: mypy, pyright
HookRegistry([fine, NoPoints()])  # error: mypy, pyright
HookRegistry([PointsThatAreNoNames()])  # error: mypy, pyright
HookRegistry([CannotBeCalled()])  # error: mypy, pyright
no_hook: Hook = "no"  # error: mypy, pyright
registry = HookRegistry()
registry.register(42)  # error: mypy, pyright
registry.register(fine, prioritty=3)  # error: mypy, pyright
registry.register(lambda ctx, request: None)  # error: mypy, pyright
registry.on(BEFORE_TOOL, fine, prioritty=3)  # error: mypy, pyright
registry.on(BEFORE_TOOL, 42)  # error: mypy, pyright
Point("typing_text", str)  # error: mypy, pyright


def call_it(ctx: AgentContext, request: ToolCallRequest) -> None:
    fine(request, ctx)  # error: mypy, pyright
    fine(ctx)  # error: mypy, pyright
    fine(ctx, request).action  # error: mypy, pyright
