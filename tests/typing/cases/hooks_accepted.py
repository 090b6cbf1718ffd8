"""Hooks that type checkers accept."""

from collections.abc import Awaitable
from typing import Any, assert_type

from hookline import (
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    AgentContext,
    AgentResult,
    HookRegistry,
    HookResult,
    ModelRequest,
    PromptBuild,
    ToolCallRequest,
    ToolCallResult,
    guard,
    hook,
    observer,
)
from hookline.hooks import Hook, Verdict
from hookline.payloads import Frozen, Inbound, RunStart
from hookline.points import INBOUND_CLAIM, Point

assert_type(BEFORE_TOOL, Point[ToolCallRequest])
assert_type(ON_RUN_END, Point[AgentResult])


class Deployment(Frozen, frozen=True):
    """A payload of one's own."""

    version: str


DEPLOYED = Point("typing_deployed", Deployment, model="observe")
assert_type(DEPLOYED, Point[Deployment])
assert_type(DEPLOYED.payload, type[Deployment])


# Functions of every signature: with and without the point, sync and async.
@hook(BEFORE_TOOL)
def two(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    return HookResult.block("no") if request.name == "rm" else None


@hook(BEFORE_TOOL)
async def two_async(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    return None


@guard("before_tool", priority=3, name="x", on_failure="block", timeout=1.5, plugin="p", tools=["a*"])
def by_name(ctx: AgentContext, request: ToolCallRequest) -> None: ...


@guard(BEFORE_TOOL)
def three(point: str, ctx: AgentContext, request: ToolCallRequest) -> HookResult:
    return HookResult.cont()


@guard(BEFORE_TOOL)
async def three_async(point: str, ctx: Any, request: ToolCallRequest) -> HookResult:
    return HookResult.cont()


@hook(BEFORE_TOOL, phase="guard")
def any_payload(ctx: Any, request: Any) -> Any: ...


@hook(BEFORE_LLM)
def base_class(ctx: AgentContext, request: Frozen) -> None: ...


# Return types of hooks.
@hook(BEFORE_TOOL)
def payload(ctx: AgentContext, request: ToolCallRequest) -> ToolCallRequest:
    return request.replace(name="other")


@hook(BEFORE_TOOL)
async def payload_async(ctx: AgentContext, request: ToolCallRequest) -> ToolCallRequest | HookResult | None:
    return request


@hook(BEFORE_TOOL)
def ethos_arguments(ctx: AgentContext, request: ToolCallRequest) -> dict[str, dict[str, str]]:
    return {"args": {"path": "/tmp"}}


@guard(BEFORE_TOOL)
def ethos_error(ctx: AgentContext, request: ToolCallRequest) -> dict[str, str] | None:
    return {"error": "no"}


@hook(BEFORE_PROMPT_BUILD)
def merge(ctx: AgentContext, build: PromptBuild) -> dict[str, str]:
    return {"append_system": "Be brief."}


@hook(INBOUND_CLAIM)
def claim(ctx: AgentContext, inbound: Inbound) -> dict[str, bool]:
    return {"handled": True}


# Several points: the payload is a union.
@hook(BEFORE_TOOL, BEFORE_LLM)
def either(ctx: AgentContext, payload: ToolCallRequest | ModelRequest) -> None: ...


@guard(BEFORE_TOOL, BEFORE_LLM, ON_RUN_START)
async def one_of_three(ctx: AgentContext, payload: ToolCallRequest | ModelRequest | RunStart) -> HookResult | None:
    return None


@observer(BEFORE_TOOL, BEFORE_LLM, ON_RUN_START, AFTER_TOOL)
def one_of_four(point: str, ctx: Any, payload: ToolCallRequest | ModelRequest | RunStart | ToolCallResult) -> None: ...


@observer(BEFORE_TOOL, "before_llm")
def mixed(ctx: Any, payload: ToolCallRequest | ModelRequest) -> None: ...


# Observers, with and without the verdict.
@observer(AFTER_TOOL)
def watch(ctx: AgentContext, result: ToolCallResult) -> None: ...


@observer(AFTER_TOOL)
async def watch_async(ctx: AgentContext, result: ToolCallResult) -> None: ...


@observer(AFTER_TOOL)
def watch_verdict(ctx: AgentContext, result: ToolCallResult, verdict: Verdict) -> None: ...


@observer(AFTER_TOOL)
async def watch_verdict_async(point: str, ctx: AgentContext, result: ToolCallResult, *, verdict: Verdict) -> None: ...


@observer(DEPLOYED)
def deployed(ctx: Any, deployment: Deployment) -> None: ...


class Rules:
    """Methods are hooks too."""

    @hook(BEFORE_TOOL)
    def judge(self, ctx: AgentContext, request: ToolCallRequest) -> HookResult:
        return HookResult.block("no")

    @guard(BEFORE_TOOL)
    async def judge_with_point(self, point: str, ctx: AgentContext, request: ToolCallRequest) -> None: ...

    @observer(AFTER_TOOL)
    def watch(self, ctx: AgentContext, result: ToolCallResult, verdict: Verdict) -> None: ...


class CountCalls:
    """A hook object."""

    points = (BEFORE_TOOL, "after_tool")
    priority = 50

    def __call__(self, point: str, ctx: AgentContext, payload: ToolCallRequest | ToolCallResult) -> None: ...


class Short:
    """A hook object that leaves out the point."""

    points = frozenset({BEFORE_TOOL})

    async def __call__(self, ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
        return None


def plain(ctx: AgentContext, request: ToolCallRequest) -> None: ...


# All of them can be registered.
hooks: list[Hook] = [two, two_async, three, payload, watch_verdict, Rules().judge, Rules().watch, CountCalls(), Short()]
registry = HookRegistry(hooks)
registry.register(CountCalls(), priority=3, tools="a*")
registry.register(plain, points=BEFORE_TOOL)
registry.on(BEFORE_TOOL, plain, priority=1)


async def test_a_hook_as_the_function_it_is(ctx: AgentContext, request: ToolCallRequest) -> None:
    assert_type(two(ctx, request), HookResult | None)
    assert_type(await two_async(ctx, request), HookResult | None)
    assert_type(three("before_tool", ctx, request), HookResult)
    assert_type(await three_async("before_tool", ctx, request), HookResult)
    assert_type(Rules().judge(ctx, request), HookResult)
    await Rules().judge_with_point("before_tool", ctx, request)
    changed: Awaitable[object] = payload_async(ctx, request)
    await changed
    assert_type(two.name, str)
