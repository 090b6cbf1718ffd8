# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Hooks without annotations are accepted: programs need not be typed."""

from hookline import AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, HookRegistry, HookResult, guard, hook, observer


@hook(BEFORE_TOOL)
def two(ctx, request):
    return {"args": {"path": "/tmp"}} if request.name == "rm" else None


@hook(BEFORE_TOOL)
def same_payload(ctx, request):
    return request.replace(name="other")


@guard(BEFORE_TOOL, BEFORE_LLM)
async def three(point, ctx, payload):
    return HookResult.block("no") if point == BEFORE_TOOL else None


@observer(AFTER_TOOL)
def watch(ctx, result): ...


@observer(AFTER_TOOL)
def watch_verdict(ctx, result, verdict): ...


@observer(AFTER_TOOL)
async def watch_by_keyword(point, ctx, result, *, verdict=None): ...


class Rules:
    @guard(BEFORE_TOOL)
    def judge(self, ctx, request):
        return HookResult.ask("Sure?")


seen: list[object] = []
by_lambda = observer(AFTER_TOOL)(lambda ctx, result: seen.append(result))
registry = HookRegistry([two, same_payload, three, watch, watch_verdict, watch_by_keyword, Rules().judge, by_lambda])
