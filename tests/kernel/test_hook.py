"""Hooks: both signatures, the decorators, and every check at registration (DESIGN 2)."""

import asyncio
import functools
import threading
import tracemalloc
from typing import Generic, TypeVar

import pytest

import hookline
from hookline import (
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_PROGRESS,
    ON_RUN_START,
    HookRegistry,
    HookResult,
    RegistrationError,
    ToolCallRequest,
    guard,
    hook,
    observer,
)
from hookline._kernel.hook import compile_hook, selects, unmatched_globs
from hookline._kernel.hook_types import HookContext
from hookline._kernel.scope import BaseContext
from hookline.points import MESSAGE_RECEIVED, MESSAGE_SENDING
from tests.cases import each_case

CALL = ToolCallRequest("1", "read", {"path": "a"})
T = TypeVar("T")


def entry_of(made, **options):
    (entry,) = compile_hook(made, **options)
    return entry


async def fire(made, point=BEFORE_TOOL, payload=CALL, **options):
    registry = HookRegistry()
    registry.register(made, **options)
    return await registry.fire(point, payload)


# Call shapes


def shapes(calls):
    """The same hook in every accepted form; each records (point, ctx, payload)."""

    class Sync:
        points = (BEFORE_TOOL,)

        def __call__(self, point, ctx, payload):
            calls.append((point, ctx, payload))

    class Async:
        points = frozenset({BEFORE_TOOL})

        async def __call__(self, point, ctx, payload):
            await asyncio.sleep(0)
            calls.append((point, ctx, payload))

    class Methods:
        def two(self, ctx, payload):
            calls.append((BEFORE_TOOL, ctx, payload))

        async def three(self, point, ctx, payload):
            calls.append((point, ctx, payload))

    @hook(BEFORE_TOOL)
    def two(ctx, payload):
        calls.append((BEFORE_TOOL, ctx, payload))

    @hook(BEFORE_TOOL)
    def three(point, ctx, payload):
        calls.append((point, ctx, payload))

    @hook(BEFORE_TOOL)
    async def two_async(ctx, payload):
        calls.append((BEFORE_TOOL, ctx, payload))

    @hook(BEFORE_TOOL)
    async def three_async(point, ctx, payload):
        calls.append((point, ctx, payload))

    @hook(BEFORE_TOOL)
    def any_number(*args):
        calls.append(args)

    @hook(BEFORE_TOOL)
    def defaults(ctx, payload, *, limit=3):
        calls.append((BEFORE_TOOL, ctx, payload))

    @hook(BEFORE_TOOL)
    def limit_last(ctx, payload, limit=3):
        assert limit == 3
        calls.append((BEFORE_TOOL, ctx, payload))

    def with_limit(limit, ctx, payload):
        calls.append((BEFORE_TOOL, ctx, payload))

    return {
        "object": Sync(),
        "async object": Async(),
        "bound method": hook(BEFORE_TOOL)(Methods().two),
        "async bound method": hook(BEFORE_TOOL)(Methods().three),
        "function of two": two,
        "function of three": three,
        "async function of two": two_async,
        "async function of three": three_async,
        "any number of arguments": any_number,
        "keyword with a default": defaults,
        "last parameter with a default": limit_last,
        "partial": hook(BEFORE_TOOL)(functools.partial(with_limit, 3)),
        "lambda": hook(BEFORE_TOOL)(lambda ctx, payload: calls.append((BEFORE_TOOL, ctx, payload))),
        "function that returns a coroutine": hook(BEFORE_TOOL)(lambda point, ctx, payload: two_async(ctx, payload)),
    }


@each_case("shape", shapes([]))
@pytest.mark.parametrize("timeout", [None, 5], ids=["", "timeout"])
async def test_every_signature_is_called_with_point_context_and_payload(shape, timeout):
    calls = []
    ctx = BaseContext()
    registry = HookRegistry()
    registry.register(shapes(calls)[shape], timeout=timeout)
    verdict = await registry.fire(BEFORE_TOOL, CALL, ctx=ctx)
    assert calls == [(BEFORE_TOOL, ctx, CALL)]
    assert verdict.action == "cont"


async def test_a_hook_at_several_points_gets_the_point():
    seen = []

    @hook(BEFORE_TOOL, "BeforeExecution", "before_tool_use")
    def both(point, ctx, payload):
        seen.append(point)

    assert both.points == {BEFORE_TOOL, ON_RUN_START}
    registry = HookRegistry([both])
    await registry.fire(BEFORE_TOOL, CALL)
    await registry.fire(ON_RUN_START, {"task": "hi"})
    assert seen == ["before_tool", "on_run_start"]


class _RewritesAndJudges:
    points = (BEFORE_TOOL, AFTER_TOOL)
    phase = {BEFORE_TOOL: ("rewrite", "guard")}  # noqa: RUF012

    def __init__(self):
        self.seen = []

    def __call__(self, point, ctx, payload, *, phase):
        self.seen.append((str(point), phase, payload.arguments["n"]))
        return payload.replace(arguments={"n": 2}) if phase == "rewrite" and point == BEFORE_TOOL else None


async def test_a_hook_with_two_phases_at_a_point_is_called_in_both_and_gets_the_phase():
    made = _RewritesAndJudges()
    registry = HookRegistry([made, hook(BEFORE_TOOL)(lambda ctx, request: request.replace(arguments={"n": 3}))])
    await registry.fire(BEFORE_TOOL, ToolCallRequest("c1", "add", {"n": 1}))
    assert made.seen == [("before_tool", "rewrite", 1), ("before_tool", "guard", 3)]
    assert [entry.phase for entry in compile_hook(made)] == ["rewrite", "guard", "rewrite"]
    assert len(registry) == 2


def test_each_of_several_phases_is_checked():
    class Wrong(_RewritesAndJudges):
        phase = {BEFORE_TOOL: ("rewrite", "judge")}  # noqa: RUF012

    with pytest.raises(RegistrationError, match="phase must be one of rewrite, guard, observe, not 'judge'"):
        HookRegistry([Wrong()])


def test_a_decorated_function_can_still_be_called_as_itself():
    @hook(BEFORE_TOOL)
    def double(ctx, payload):
        """Doubles."""
        return payload * 2

    assert double(None, 4) == double(None, payload=4) == 8
    assert double.__doc__ == "Doubles."
    assert double.__name__ == "double"
    assert repr(double) == "<hook double at before_tool>"


def test_a_function_that_does_not_show_its_parameters_gets_all_three():
    entry = entry_of(max, points=BEFORE_TOOL)
    assert (entry.call.args, entry.wants_verdict) == ((BEFORE_TOOL,), False)


class Rules:
    """Hooks written as methods."""

    def __init__(self, word):
        self.word = word

    @hook(BEFORE_TOOL, name="short", priority=4)
    def two(self, ctx, payload):
        return HookResult.block(self.word)

    @guard(BEFORE_TOOL)
    def three(self, point, ctx, payload):
        return HookResult.block(f"{self.word} at {point}")


async def test_a_decorated_method_is_a_hook_of_its_object():
    assert (await fire(Rules("no").two)).value == "no"
    assert (await fire(Rules("never").three)).value == "never at before_tool"
    bound = entry_of(Rules("no").two)
    assert (bound.name, bound.priority, bound.point) == ("short", 4, BEFORE_TOOL)
    assert Rules("no").three.name == "three"
    assert Rules.two is Rules.two
    assert Rules.three.points == {BEFORE_TOOL}


async def test_a_method_that_cannot_work_is_rejected_once_it_is_bound():
    class Wrong:
        @hook(BEFORE_TOOL)
        def none(self): ...

    with pytest.raises(RegistrationError, match=r"hook 'none' at before_tool: it must take .*not \(\)"):
        Wrong().none  # noqa: B018


def test_a_hook_without_a_name_is_named_by_its_repr():
    made = functools.partial(two)
    assert hook(BEFORE_TOOL)(made).name == repr(made)


def test_the_repr_of_a_hook_contains_its_points():
    assert repr(hook(BEFORE_TOOL, AFTER_TOOL)(two)) == "<hook two at after_tool, before_tool>"


def only_defaults(ctx=None, payload=None): ...


def positional_only(ctx, payload, /): ...


def three_defaults(point=None, ctx=None, payload=None): ...


def more_than_three(point, ctx, payload, limit=3): ...


def first_and_rest(point, *rest): ...


def two_and_rest(ctx, payload, *rest): ...


def two_and_two_more(ctx, payload, limit=3, other=4): ...


def four_and_rest(point, ctx, payload, more, *rest): ...


@pytest.mark.parametrize(
    ("made", "with_point"),
    [
        (only_defaults, False),
        (positional_only, False),
        (two_and_rest, False),
        (two_and_two_more, False),
        (three_defaults, True),
        (more_than_three, True),
        (first_and_rest, True),
    ],
)
def test_a_signature_tells_whether_a_hook_takes_the_point(made, with_point):
    call = entry_of(made, points=BEFORE_TOOL).call
    assert (call is not made) is with_point
    if with_point:
        assert (call.func, call.args, call.keywords) == (made, (BEFORE_TOOL,), {})


class WithPoint:
    def __call__(self, point, ctx, payload): ...


class WithoutPoint(WithPoint):
    def __call__(self, ctx, payload): ...


class Wrapping(WithPoint):
    """Like a function decorated with an object: it has the signature of the function."""

    def __init__(self, fn):
        functools.update_wrapper(self, fn)


@pytest.mark.parametrize(
    ("made", "with_point"),
    [(WithPoint(), True), (WithoutPoint(), False), (Wrapping(positional_only), False)],
)
def test_an_object_has_the_signature_of_its_class_unless_it_has_its_own(made, with_point):
    assert (entry_of(made, points=BEFORE_TOOL).call is not made) is with_point


def test_a_hook_that_needs_more_than_it_is_given_is_rejected():
    with pytest.raises(RegistrationError, match="it must take"):
        entry_of(four_and_rest, points=BEFORE_TOOL)


def test_an_async_hook_is_recognised():
    async def later(ctx, payload): ...

    class Later:
        async def __call__(self, point, ctx, payload): ...

    assert entry_of(later, points=BEFORE_TOOL).is_async is True
    assert entry_of(Later(), points=BEFORE_TOOL).is_async is True
    assert entry_of(hook(BEFORE_TOOL)(later)).is_async is True
    assert entry_of(two, points=BEFORE_TOOL).is_async is False
    assert entry_of(later, points=BEFORE_TOOL, timeout=5).is_async is True
    assert entry_of(later, points=BEFORE_TOOL, tools="read").is_async is False


async def test_an_object_that_has_a_function_is_still_called_itself():
    class Wrapping:
        points = (BEFORE_TOOL,)
        fn = staticmethod(lambda ctx, payload: HookResult.end("not me"))

        def __call__(self, point, ctx, payload):
            return HookResult.block("me")

    assert (await fire(Wrapping())).value == "me"


def test_an_entry_knows_its_hook_by_identity():
    entry = entry_of(two, points=BEFORE_TOOL)
    assert (entry.hook, entry.id_set) == (two, {id(two)})


def test_no_glob_selects_a_payload_without_a_tool():
    assert selects((), object())
    assert not selects(("?*",), object())


# Options


def test_a_name_may_differ_by_point():
    class Watch:
        points = (BEFORE_TOOL, AFTER_TOOL)
        name = {BEFORE_TOOL: "early"}

        def __call__(self, point, ctx, payload): ...

    assert [entry.name for entry in compile_hook(Watch())] == ["early", "Watch"]


@pytest.mark.parametrize("timeout", [0.5, 1, 3])
def test_any_positive_number_of_seconds_is_a_timeout(timeout):
    assert entry_of(two, points=BEFORE_TOOL, timeout=timeout).timeout == timeout


@pytest.mark.parametrize("decorator", [guard, observer])
def test_guards_and_observers_have_their_phase_and_take_no_other(decorator):
    with pytest.raises(TypeError, match="phase"):
        decorator(BEFORE_TOOL, phase="rewrite")


def test_options_have_documented_defaults():
    @hook(BEFORE_TOOL)
    def plain(ctx, payload): ...

    @guard(BEFORE_TOOL)
    def judge(ctx, payload): ...

    @observer(BEFORE_TOOL)
    def watch(ctx, payload): ...

    @hook(MESSAGE_RECEIVED)
    def received(ctx, payload): ...

    def options(made):
        e = entry_of(made)
        return e.phase, e.priority, e.on_failure, e.timeout, e.plugin, e.tools, e.name

    assert options(plain) == ("rewrite", 0, "closed", None, None, (), "plain")
    assert options(judge) == ("guard", 0, "closed", None, None, (), "judge")
    assert options(watch) == ("observe", 0, "open", None, None, (), "watch")
    assert options(received) == ("observe", 0, "open", None, None, (), "received")


GIVEN = {
    "priority": 7,
    "phase": "guard",
    "name": "other",
    "on_failure": "block",
    "timeout": 2.5,
    "plugin": "mine",
    "tools": "read*",
}


@pytest.mark.parametrize("how", ["decorator", "attributes", "registration"])
def test_every_option_can_be_given_in_every_way(how):
    def plain(ctx, payload): ...

    class Plain:
        points = (BEFORE_TOOL,)

        def __call__(self, point, ctx, payload): ...

    if how == "decorator":
        entry = entry_of(hook(BEFORE_TOOL, **GIVEN)(plain))
    elif how == "attributes":
        made = Plain()
        vars(made).update(GIVEN)
        entry = entry_of(made)
    else:
        entry = entry_of(plain, points=BEFORE_TOOL, **GIVEN)
    assert {key: getattr(entry, key) for key in GIVEN} == {**GIVEN, "tools": ("read*",)}


@pytest.mark.parametrize(
    ("decorator", "phase", "on_failure"), [(guard, "guard", "block"), (observer, "observe", "closed")]
)
def test_guards_and_observers_take_every_other_option(decorator, phase, on_failure):
    options = {key: value for key, value in GIVEN.items() if key != "phase"} | {"on_failure": on_failure}
    entry = entry_of(decorator(BEFORE_TOOL, **options)(two))
    assert {key: getattr(entry, key) for key in GIVEN} == {**options, "phase": phase, "tools": ("read*",)}


def test_options_at_registration_override_those_of_the_hook():
    made = hook(BEFORE_TOOL, priority=3, name="own", timeout=9)(lambda ctx, payload: None)
    entry = entry_of(made, priority=0, name="given", points=AFTER_TOOL)
    assert (entry.priority, entry.name, entry.timeout, entry.point) == (0, "given", 9, AFTER_TOOL)


def test_a_hook_object_is_named_after_its_class_if_it_has_no_name():
    class PathGuard:
        points = (BEFORE_TOOL,)

        def __call__(self, point, ctx, payload): ...

    assert entry_of(PathGuard()).name == "PathGuard"


@pytest.mark.parametrize(
    ("globs", "tool", "called"),
    [
        ("read", "read", True),
        ("read", "reader", False),
        ("read*", "reader", True),
        (["write", "r?ad"], "read", True),
        (("write", "delete"), "read", False),
        ("READ", "read", False),
    ],
)
async def test_tools_selects_calls_by_glob(globs, tool, called):
    made = guard(BEFORE_TOOL, tools=globs)(lambda ctx, call: HookResult.block("no"))
    verdict = await fire(made, payload=CALL.replace(name=tool))
    assert (verdict.action == "block") is called


async def test_names_that_models_make_up_do_not_fill_the_memory():
    made = guard(BEFORE_TOOL, tools=["delete_*", "shell"])(lambda ctx, call: HookResult.block("no"))
    registry = HookRegistry([made])
    tracemalloc.start()
    try:
        await registry.fire(BEFORE_TOOL, CALL)
        for number in range(6000):
            await registry.fire(BEFORE_TOOL, CALL.replace(name=f"made_up_{number}"))
        before, _ = tracemalloc.get_traced_memory()
        for number in range(6000):
            await registry.fire(BEFORE_TOOL, CALL.replace(name=f"invented_{number}"))
        for number in range(40):
            await registry.fire(BEFORE_TOOL, CALL.replace(name=f"{number}" + "x" * 100_000))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000
    assert (await registry.fire(BEFORE_TOOL, CALL.replace(name="delete_" + "x" * 100_000))).action == "block"
    assert (await registry.fire(BEFORE_TOOL, CALL.replace(name="delete_it"))).action == "block"


async def test_the_same_globs_are_asked_once_about_a_tool(monkeypatch):
    asked = []
    monkeypatch.setattr("hookline._kernel.hook.fnmatchcase", lambda tool, glob: asked.append(tool) or tool == glob)
    registry = HookRegistry([guard(BEFORE_TOOL, tools=["asked_once"])(lambda ctx, call: HookResult.block("no"))])
    for _ in range(3):
        assert (await registry.fire(BEFORE_TOOL, CALL.replace(name="asked_once"))).action == "block"
        assert (await registry.fire(BEFORE_TOOL, CALL.replace(name="another"))).action == "cont"
    assert asked == ["asked_once", "another"]


async def test_a_hook_for_some_tools_is_called_like_any_other():
    seen, ctx = [], BaseContext()
    registry = HookRegistry()
    registry.on(BEFORE_TOOL, lambda ctx, call: seen.append((ctx, call)), tools="read")
    await registry.fire(BEFORE_TOOL, CALL, ctx=ctx)
    assert seen == [(ctx, CALL)]


async def test_tools_is_judged_on_the_name_as_rewritten():
    registry = HookRegistry()
    registry.on(BEFORE_TOOL, lambda ctx, call: call.replace(name="delete"))
    registry.on(BEFORE_TOOL, lambda ctx, call: HookResult.block("no"), phase="guard", tools="delete")
    assert (await registry.fire(BEFORE_TOOL, CALL)).action == "block"


@pytest.mark.parametrize(
    ("point", "payload"),
    [
        (AFTER_TOOL, {"id": "1", "name": "read"}),
        (ON_PROGRESS, {"phase": "tool_start", "call_id": "1", "tool": "read"}),
        ("tool_end_with_path", {"tool": "read", "file_path": "a", "working_dir": "/"}),
    ],
)
@pytest.mark.parametrize(("glob", "called"), [("read", 1), ("write", 0)])
async def test_tools_works_at_every_tool_point(point, payload, glob, called):
    seen = []
    await fire(observer(point, tools=glob)(lambda ctx, p: seen.append(p)), point, payload)
    assert len(seen) == called


async def test_an_observer_that_names_verdict_gets_it_with_tools_and_timeout_too():
    seen = []

    def watch(ctx, payload, verdict):
        seen.append((verdict.action, verdict.value))

    async def watch_async(ctx, payload, verdict):
        seen.append((verdict.action, verdict.value))

    def watch_keyword(point, ctx, payload, *, verdict):
        seen.append((verdict.action, verdict.value))

    registry = HookRegistry()
    registry.on(BEFORE_TOOL, lambda ctx, call: HookResult.block("no"))
    for made in (watch, watch_async, watch_keyword):
        registry.on(BEFORE_TOOL, made, phase="observe")
        registry.on(BEFORE_TOOL, made, phase="observe", tools="read")
        registry.on(BEFORE_TOOL, made, phase="observe", timeout=5)
    await registry.fire(BEFORE_TOOL, CALL)
    assert seen == [("block", "no")] * 9


async def test_a_sync_hook_with_a_timeout_runs_in_a_worker_thread_and_without_one_in_the_loops():
    threads = []

    def note(ctx, payload):
        threads.append(threading.get_ident())

    await fire(note, points=BEFORE_TOOL)
    await fire(note, points=BEFORE_TOOL, timeout=5)
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()


# Checks at registration


def two(ctx, payload): ...


def none(): ...


def one(payload): ...


def four(point, ctx, payload, more): ...


def keyword(ctx, payload, *, limit): ...


def with_verdict(ctx, payload, verdict): ...


class Hooks:
    points = (BEFORE_TOOL,)

    def __call__(self, point, ctx, payload): ...


class WrongObject:
    points = (BEFORE_TOOL,)

    def __call__(self, payload): ...


@each_case(
    ("made", "point", "options", "message"),
    [
        (none, BEFORE_TOOL, {}, r"it must take \(ctx, payload\) or \(point, ctx, payload\), not \(\)"),
        (one, BEFORE_TOOL, {}, r"it must take .*not \(payload\)"),
        (four, BEFORE_TOOL, {}, r"it must take .*not \(point, ctx, payload, more\)"),
        (keyword, BEFORE_TOOL, {}, r"it must take .*limit"),
        (WrongObject(), None, {}, r"hook 'WrongObject' at before_tool: it must take .*not \(payload\)"),
        (with_verdict, BEFORE_TOOL, {}, "only an observer gets a verdict; use @observer"),
        (with_verdict, BEFORE_TOOL, {"phase": "guard"}, "only an observer gets a verdict"),
        (two, MESSAGE_SENDING, {"phase": "guard"}, "guards exist only at pipeline points; this is a merge point"),
        (two, "inbound_claim", {"phase": "guard"}, "guards exist only at pipeline points; this is a claim point"),
        (two, ON_PROGRESS, {"phase": "guard"}, "guards exist only at pipeline points"),
        (two, ON_PROGRESS, {"phase": "rewrite"}, "only observers exist at an observe point"),
        (two, BEFORE_TOOL, {"phase": "late"}, "phase must be one of rewrite, guard, observe, not 'late'"),
        (two, BEFORE_LLM, {"tools": "read"}, "tools= selects calls at tool points only"),
        (two, ON_RUN_START, {"tools": ["read"]}, "tools= selects calls at tool points only"),
        (two, BEFORE_TOOL, {"tools": [3]}, r"tools= takes a glob of tool names, or a list of them, not \[3\]"),
        (two, AFTER_TOOL, {"on_failure": "block"}, "on_failure='block' is for hooks that decide at before_tool"),
        (two, BEFORE_TOOL, {"on_failure": "block", "phase": "observe"}, "on_failure='block' is for hooks that decide"),
        (two, BEFORE_TOOL, {"on_failure": "ignore"}, "on_failure must be one of closed, block, open, not 'ignore'"),
        (two, BEFORE_TOOL, {"timeout": 0}, "timeout must be a positive number of seconds, not 0"),
        (two, BEFORE_TOOL, {"timeout": -1}, "timeout must be a positive number"),
        (two, BEFORE_TOOL, {"timeout": "5"}, "timeout must be a positive number of seconds, not '5'"),
        (two, BEFORE_TOOL, {"timeout": True}, "timeout must be a positive number"),
        (two, BEFORE_TOOL, {"timeout": float("nan")}, "timeout must be a positive number"),
        (two, BEFORE_TOOL, {"priority": "high"}, "priority must be a number, not 'high'"),
        (two, BEFORE_TOOL, {"priority": True}, "priority must be a number, not True"),
        (two, BEFORE_TOOL, {"priority": float("nan")}, "priority must be a number"),
        (two, BEFORE_TOOL, {"prioritty": 5}, "unknown hook option 'prioritty'. Did you mean 'priority'"),
        (two, "befor_tool", {}, "unknown point 'befor_tool'. Did you mean 'before_tool'"),
        (two, 3, {}, "a point must be a name"),
        (two, None, {}, r"hook 'two' names no points: decorate it with @hook\(POINT\) or pass points="),
        (Hooks, None, {}, r".* is not a hook: it is a class: write Hooks\(\)"),
        ([two], BEFORE_TOOL, {}, r".* is not a hook: it is a list: unpack it with \*"),
        (3, BEFORE_TOOL, {}, "3 is not a hook: expected an instance with points and __call__"),
        ("text", BEFORE_TOOL, {}, "'text' is not a hook"),
        (None, BEFORE_TOOL, {}, "None is not a hook"),
    ],
)
def test_a_hook_that_cannot_work_is_rejected_with_the_reason(made, point, options, message):
    registry = HookRegistry()
    with pytest.raises(RegistrationError, match=f"(^|: ){message}"):
        registry.register(made, points=None if point is None else [point], **options)
    assert len(registry) == 0


def test_a_mistake_shows_where_the_hook_is_written():
    with pytest.raises(RegistrationError, match="hook 'one' at before_tool: it must take"):
        hook(BEFORE_TOOL)(one)
    with pytest.raises(RegistrationError, match="guards exist only"):
        guard(MESSAGE_SENDING)(two)
    with pytest.raises(RegistrationError, match="unknown point"):
        hook("nowhere")(two)


@pytest.mark.parametrize("decorator", [hook, guard, observer])
def test_a_decorator_needs_a_point(decorator):
    with pytest.raises(RegistrationError, match=r"^name at least one point: @hook\(BEFORE_TOOL\)$"):
        decorator()
    with pytest.raises(RegistrationError, match="name at least one point"):
        decorator(two)


@pytest.mark.parametrize("decorator", [hook, guard, observer])
def test_a_decorator_rejects_an_option_it_does_not_know(decorator):
    with pytest.raises(TypeError, match="prioritty"):
        decorator(BEFORE_TOOL, prioritty=5)


def test_a_class_under_a_decorator_is_rejected():
    with pytest.raises(RegistrationError):
        hook(BEFORE_TOOL)(Hooks)


def test_a_hook_with_an_empty_list_of_points_registers_nothing():
    registry = HookRegistry()
    registry.register(two, points=())
    assert len(registry) == 0


def test_an_option_may_differ_by_point():
    class Watch:
        points = (BEFORE_TOOL, BEFORE_LLM, MESSAGE_SENDING)
        phase = {BEFORE_TOOL: "guard"}
        priority = {BEFORE_TOOL: 100, "before_llm": -200}

        def __call__(self, point, ctx, payload):
            return None

    entries = {str(entry.point): (entry.phase, entry.priority) for entry in compile_hook(Watch())}
    assert entries == {
        "before_tool": ("guard", 100),
        "before_llm": ("rewrite", -200),
        "message_sending": ("rewrite", 0),
    }


def test_points_of_options_may_have_any_of_their_names_and_must_exist():
    class Judge:
        points = ("BeforeToolExec",)
        phase = {"before_tool_use": "guard"}

        def __call__(self, point, ctx, payload):
            pass

    assert [entry.phase for entry in HookRegistry([Judge()]).stack.entries(BEFORE_TOOL)] == ["guard"]
    Judge.phase = {"before_tol": "guard"}
    with pytest.raises(RegistrationError, match="before_tol"):
        HookRegistry([Judge()])


# Parameters in the wrong order


class AgentContext(Generic[T]):
    """A stand-in for the real class, which the kernel only knows by name."""


def named_wrongly(request, ctx): ...
def named_in_full(payload, context): ...
def payload_first(payload, other): ...
def request_first(request, other): ...
def point_and_ctx(point, ctx): ...
def point_and_payload(point, payload): ...
def ctx_is_last(point, request, ctx): ...
def point_is_last(ctx, payload, point): ...
def one_too_many(ctx, request, limit): ...
def annotated_ctx(x, y: AgentContext): ...
def annotated_generic(x, y: AgentContext[int]): ...
def annotated_in_text(x, y: "hookline.AgentContext[Deps]"): ...  # noqa: F821
def annotated_in_quotes(x, y: "'AgentContext'"): ...  # a quoted name in unevaluated annotations
def annotated_payload(x: ToolCallRequest, y): ...
def annotation_beats_the_name(ctx: ToolCallRequest, y): ...
async def async_too(request, ctx): ...
def watches(request, ctx, verdict): ...


class Swapped:
    points = (BEFORE_TOOL,)

    def __call__(self, ctx, point, payload): ...


@each_case(
    "made",
    [
        named_wrongly,
        named_in_full,
        payload_first,
        request_first,
        point_and_ctx,
        point_and_payload,
        ctx_is_last,
        point_is_last,
        one_too_many,
        annotated_ctx,
        annotated_in_text,
        annotated_in_quotes,
        annotated_generic,
        annotated_payload,
        annotation_beats_the_name,
        async_too,
        functools.partial(one_too_many),
        Swapped(),
    ],
)
def test_parameters_in_the_wrong_order_are_rejected_with_the_right_one(made):
    order = r"its parameters are in the wrong order: \(ctx, payload\) or \(point, ctx, payload\), not \("
    with pytest.raises(RegistrationError, match=rf"^hook .* at before_tool: {order}"):
        HookRegistry().register(made, points=BEFORE_TOOL)


def test_the_order_is_checked_where_the_hook_is_written_and_for_observers_too():
    with pytest.raises(RegistrationError, match="hook 'named_wrongly' at before_tool: .*not \\(request, ctx\\)"):
        guard(BEFORE_TOOL)(named_wrongly)
    with pytest.raises(RegistrationError, match="hook 'watches' at before_tool: its parameters are in the wrong order"):
        observer(BEFORE_TOOL)(watches)


def unusual_names(a, b): ...
def payload_called_context(ctx, context): ...
def ctx_annotated(c: AgentContext, request: ToolCallRequest): ...
def ctx_called_request(request: AgentContext, other: ToolCallRequest): ...
def annotated_with_a_value(a: 3, b: "any text"): ...  # noqa: F722
def payload_of_another_point(run: ToolCallRequest, request): ...
def default_ctx(point, ctx=None, payload=None): ...
def everything(*args): ...


@pytest.mark.parametrize(
    ("made", "point"),
    [
        (unusual_names, BEFORE_TOOL),
        (payload_called_context, BEFORE_TOOL),
        (ctx_annotated, BEFORE_TOOL),
        (ctx_called_request, BEFORE_TOOL),
        (annotated_with_a_value, BEFORE_TOOL),
        (payload_of_another_point, BEFORE_LLM),
        (default_ctx, BEFORE_TOOL),
        (everything, BEFORE_TOOL),
    ],
)
def test_neutral_parameter_names_are_accepted(made, point):
    assert entry_of(made, points=point).name == made.__name__


# The attribute and option "tools"


def test_an_attribute_called_tools_that_holds_no_globs_is_explained():
    def make(value):
        class Search:
            points = (BEFORE_TOOL,)
            tools = value

            def __call__(self, point, ctx, payload): ...

        return Search()

    def a_tool(): ...

    explained = "; the attribute 'tools' of a hook is read as that option: rename it if it means something else"
    for value in ([a_tool], 3, a_tool, object()):
        with pytest.raises(
            RegistrationError, match=f"^hook 'Search' at before_tool: tools= takes a glob.*[^X]{explained}$"
        ):
            HookRegistry([make(value)])
    with pytest.raises(RegistrationError, match="^hook 'Search': option 'tools' is a dict, so its keys are points"):
        HookRegistry([make({"search": a_tool})])
    with pytest.raises(RegistrationError, match="^hook 'Search' at before_tool: tools= takes a glob") as refused:
        HookRegistry().register(make("s*"), tools=7)
    assert explained not in str(refused.value)
    with pytest.raises(RegistrationError, match="tools= takes a glob") as refused:
        hook(BEFORE_TOOL, tools=[3])(two)
    assert explained not in str(refused.value)


@pytest.mark.parametrize("globs", ["re*", ["re*", "x"], ("re*",), {"re*"}, {"re*": 1}.keys()])
def test_tools_is_a_glob_or_any_collection_of_them(globs):
    assert "re*" in entry_of(hook(BEFORE_TOOL, tools=globs)(two)).tools


def test_globs_that_match_no_tool_are_found():
    @hook(BEFORE_TOOL, tools=["pong*", "re*"])
    def ping(ctx, request): ...

    @hook(BEFORE_TOOL)
    def everywhere(ctx, request): ...

    entries = [entry_of(ping), entry_of(everywhere)]
    found = [(entry.name, glob) for entry, glob in unmatched_globs(entries, iter(["read", "ping"]))]
    assert found == [("ping", "pong*")]
    assert list(unmatched_globs(entries, ["read", "pong"])) == []


def test_every_context_of_a_hook_matches_its_type():
    promised = {name for name in vars(HookContext) if not name.startswith("_")}
    assert promised == {"scratch", "state"}
    for ctx in (BaseContext(), hookline.AgentContext()):
        assert all(hasattr(ctx, name) for name in promised)
