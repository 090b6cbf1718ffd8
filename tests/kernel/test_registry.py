"""Registering hooks, their order, and firing points outside a run (DESIGN 4.1)."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    AFTER_TOOL,
    BEFORE_TOOL,
    ON_RUN_START,
    HookError,
    HookRegistry,
    HookResult,
    RegistrationError,
    ToolCallRequest,
    guard,
    hook,
    observer,
)
from hookline._kernel.hook import compile_hook
from hookline._kernel.registry import REGISTRATIONS, fire_outside_run
from hookline._kernel.scope import CURRENT, FIRED, BaseContext, Scope, scope_of
from hookline.compat import HookStack
from hookline.hooks import PassThrough
from hookline.payloads import InboundMessage, RunStart
from hookline.points import POINTS

CALL = ToolCallRequest("1", "read", {"path": "a"})


class Named:
    """A hook that records its label."""

    def __init__(self, label, calls=None, points=(BEFORE_TOOL,), **options):
        self.label, self.calls, self.points = label, calls if calls is not None else [], points
        vars(self).update(options)

    def __call__(self, point, ctx, payload):
        self.calls.append(self.label)

    def __repr__(self):
        return self.label


def labels(hooks):
    return [h.label for h in hooks]


# Order


@given(
    st.lists(
        st.tuples(st.sampled_from(["rewrite", "guard", "observe"]), st.integers(0, 2), st.integers(-2, 2)),
        max_size=12,
    )
)
def test_hooks_fire_in_order_of_phase_layer_priority_and_registration(made):
    """Compare with a sort; each hook is (phase, layer, priority), registered in this order."""
    calls = []
    layers = [[], [], []]
    for number, (phase, layer, priority) in enumerate(made):
        layers[layer] += compile_hook(Named(str(number), calls, phase=phase, priority=priority))
    stack = HookStack(*layers)
    rank = {"rewrite": 0, "guard": 1, "observe": 2}
    expected = sorted(range(len(made)), key=lambda n: (rank[made[n][0]], made[n][1], -made[n][2], n))
    assert labels(stack.at(BEFORE_TOOL)) == [str(n) for n in expected]
    asyncio.run(fire_outside_run(stack.chain(BEFORE_TOOL), BEFORE_TOOL, CALL, Scope(BaseContext())))
    assert calls == [str(n) for n in expected]


def test_a_registry_is_one_layer_ordered_by_phase_priority_and_registration():
    registry = HookRegistry(
        [
            Named("watch", phase="observe", priority=100),
            Named("low", priority=-1),
            Named("judge", phase="guard", priority=50),
            Named("first"),
            Named("high", priority=1.5),
            Named("second"),
        ]
    )
    assert labels(registry.at("BeforeToolUse")) == ["high", "first", "second", "low", "judge", "watch"]
    assert registry.at(AFTER_TOOL) == []
    with pytest.raises(RegistrationError):
        registry.at("nowhere")


def test_a_hook_at_several_points_is_in_each_of_them_but_counts_once():
    both = Named("both", points=(BEFORE_TOOL, AFTER_TOOL))
    registry = HookRegistry([both])
    assert registry.at(BEFORE_TOOL) == registry.at(AFTER_TOOL) == [both]
    assert list(registry) == [both]
    assert len(registry) == 1
    assert registry.stack.points == {BEFORE_TOOL, AFTER_TOOL}


# Registering and taking out


async def test_register_overrides_points_priority_and_name():
    registry = HookRegistry()
    one, two = Named("one"), Named("two")
    registry.register(one)
    registry.register(two, (BEFORE_TOOL, ON_RUN_START), 5, "renamed")
    assert labels(registry.at(BEFORE_TOOL)) == ["two", "one"]
    assert labels(registry.at(ON_RUN_START)) == ["two"]
    assert [e.name for e in registry.stack.entries(BEFORE_TOOL)] == ["renamed", "Named"]


def test_the_closure_takes_out_exactly_what_was_registered():
    registry = HookRegistry()
    made = Named("twice")
    off = registry.register(made)
    registry.register(made, priority=3)
    assert len(registry.at(BEFORE_TOOL)) == 2
    off()
    assert [e.priority for e in registry.stack.entries(BEFORE_TOOL)] == [3]
    off()
    assert len(registry) == 1


def test_on_registers_a_plain_function_at_one_point():
    registry = HookRegistry()
    off = registry.on("before_tool_call", lambda ctx, call: None, priority=4, name="mine", plugin="p")
    (entry,) = registry.stack.entries(BEFORE_TOOL)
    assert (entry.priority, entry.name, entry.plugin) == (4, "mine", "p")
    off()
    assert len(registry) == 0


def test_on_uses_only_the_point_it_is_given():
    both = Named("both", points=(BEFORE_TOOL, AFTER_TOOL))
    registry = HookRegistry()
    registry.on(AFTER_TOOL, both)
    assert registry.at(BEFORE_TOOL) == []
    assert registry.at(AFTER_TOOL) == [both]


def test_extend_takes_hooks_or_another_registry():
    one, two, three = Named("one"), Named("two", priority=1), Named("three")
    other = HookRegistry()
    other.register(two, priority=9, plugin="p")
    registry = HookRegistry([one])
    registry.extend(other)
    registry.extend(h for h in [three])
    assert labels(registry.at(BEFORE_TOOL)) == ["two", "one", "three"]
    assert registry.stack.entries(BEFORE_TOOL)[0].plugin == "p"
    two_only = HookRegistry(other)
    assert two_only.at(BEFORE_TOOL) == [two]


@pytest.mark.parametrize("bad", ["before_tool", 3, Named("not a list")])
def test_hooks_must_be_a_list_or_a_registry(bad):
    with pytest.raises(RegistrationError, match="hooks must be a list of hooks or a HookRegistry, not"):
        HookRegistry().extend(bad)


def test_extend_registers_all_or_nothing():
    registry = HookRegistry()
    with pytest.raises(RegistrationError):
        registry.extend([Named("good"), "bad"])
    assert len(registry) == 0


def test_a_copy_is_independent():
    one, two = Named("one"), Named("two")
    registry = HookRegistry([one])
    other = registry.copy()
    other.register(two)
    registry.unregister(one)
    assert (registry.at(BEFORE_TOOL), other.at(BEFORE_TOOL)) == ([], [one, two])


def test_unregister_takes_a_hook_out_of_every_point():
    one, two = Named("one", points=(BEFORE_TOOL, AFTER_TOOL)), Named("two")
    registry = HookRegistry([one, two])
    registry.unregister(one)
    assert (registry.at(BEFORE_TOOL), registry.at(AFTER_TOOL)) == ([two], [])


def test_a_bound_method_can_be_unregistered():
    class Guards:
        def judge(self, ctx, call): ...

    guards, others = Guards(), Guards()
    registry = HookRegistry()
    registry.on(BEFORE_TOOL, guards.judge)
    registry.on(BEFORE_TOOL, others.judge)
    registry.unregister(guards.judge)
    assert registry.at(BEFORE_TOOL) == [others.judge]


def test_two_hooks_that_compare_equal_are_still_two():
    @dataclass
    class Limit:
        count: int
        points = (BEFORE_TOOL,)

        def __call__(self, point, ctx, payload): ...

    one, two = Limit(3), Limit(3)
    registry = HookRegistry([one, two])
    assert len(registry) == 2
    registry.unregister(one)
    (left,) = registry.at(BEFORE_TOOL)
    assert left is two


def test_unregister_plugin_takes_out_all_its_hooks_and_no_other():
    registry = HookRegistry([Named("builtin")])
    registry.register(Named("a", points=(BEFORE_TOOL, AFTER_TOOL)), plugin="p")
    registry.register(Named("b"), plugin="p")
    registry.register(Named("c"), plugin="q")
    registry.unregister_plugin("p")
    assert labels(registry.at(BEFORE_TOOL)) == ["builtin", "c"]
    assert registry.at(AFTER_TOOL) == []


def test_the_stack_is_the_same_until_something_changes():
    registry = HookRegistry([Named("one")])
    stack, changes = registry.stack, REGISTRATIONS.changes
    assert registry.stack is stack
    registry.register(Named("two"))
    assert registry.stack is not stack
    assert REGISTRATIONS.changes > changes
    assert labels(stack.at(BEFORE_TOOL)) == ["one"]


def test_with_hook_leaves_the_stack_as_it_was():
    first = HookStack(compile_hook(Named("a")), compile_hook(Named("b")))
    second = first.with_hook(Named("c"), priority=9).with_hook(lambda ctx, p: None, points=AFTER_TOOL)
    assert labels(first.at(BEFORE_TOOL)) == ["a", "b"]
    assert labels(second.at(BEFORE_TOOL)) == ["a", "c", "b"]
    assert first.points == {BEFORE_TOOL}
    assert second.points == {BEFORE_TOOL, AFTER_TOOL}
    assert labels(HookStack().with_hook(Named("only")).at(BEFORE_TOOL)) == ["only"]


def test_with_hook_adds_to_the_last_layer_with_its_options():
    agent, run = Named("agent"), Named("run", priority=-9)
    stack = HookStack(compile_hook(agent), compile_hook(run))
    more = stack.with_hook(Named("more"), priority=5, name="extra")
    assert labels(more.at(BEFORE_TOOL)) == ["agent", "more", "run"]
    assert [[entry.name for entry in layer] for layer in more.layers] == [["Named"], ["Named", "extra"]]
    assert labels(stack.with_hook(Named("other"), points="after_tool").at(AFTER_TOOL)) == ["other"]


def test_a_stack_lists_its_points_and_the_hooks_with_special_methods():
    class Listener(Named):
        def on_event(self, event): ...

    class Wrapper(Named):
        def wrap(self, point, ctx, payload): ...

    class Both(Listener, Wrapper):
        pass

    class Instrument(Named):
        def instrument(self, services): ...

    class Limiting(Named):
        def limits(self): ...

    plain, both, listener = Named("plain"), Both("both", points=(BEFORE_TOOL, AFTER_TOOL)), Listener("listener")
    wrapper, instrument, limiting = Wrapper("wrapper"), Instrument("instrument"), Limiting("limiting")
    others = (both, listener, wrapper, instrument, limiting)
    stack = HookStack(compile_hook(plain), [entry for each in others for entry in compile_hook(each)])
    assert stack.points == {BEFORE_TOOL, AFTER_TOOL}
    assert stack.listeners == (both, listener)
    assert stack.wrappers == (both, wrapper)
    assert (stack.instruments, stack.limiting) == ((instrument,), (limiting,))
    assert (HookStack().points, HookStack().listeners, HookStack().wrappers) == (frozenset(), (), ())
    assert (HookStack().instruments, HookStack().limiting) == ((), ())


def test_a_filtered_stack_is_the_same_object_if_nothing_is_removed():
    one, two, plug = Named("one"), Named("two"), Named("plug")
    stack = HookStack(compile_hook(one), [*compile_hook(two), *compile_hook(plug, plugin="p")])
    assert labels(stack.without(frozenset({id(one), id(plug)})).at(BEFORE_TOOL)) == ["two"]
    assert stack.without(frozenset()) is stack
    assert stack.without(frozenset({id(object())})) is stack
    assert stack.only(None) is stack
    assert stack.only(["p"]) is stack
    assert labels(stack.only([]).at(BEFORE_TOOL)) == ["one", "two"]
    assert len(stack.only([]).layers) == 2
    with pytest.raises(TypeError, match=r"allowed_plugins must be a list of names: \['p'\]"):
        stack.only("p")


def test_entries_come_in_firing_order_under_any_name_of_the_point():
    made = [Named("o", phase="observe"), Named("g", phase="guard"), Named("r")]
    stack = HookRegistry(made).stack
    assert [entry.hook.label for entry in stack.entries("BeforeToolUse")] == ["r", "g", "o"]
    assert stack.entries(AFTER_TOOL) == ()


def test_every_change_of_any_registry_is_counted():
    counts = [REGISTRATIONS.changes]

    def changed():
        counts.append(REGISTRATIONS.changes)
        return counts[-1] == counts[-2] + 1

    registry, named = HookRegistry(), Named("a")
    registry.register(named)
    assert changed()
    registry.unregister(named)
    assert changed()
    registry.extend([named, Named("b")])
    assert changed()
    registry.unregister_plugin("p")
    assert changed()
    HookRegistry(registry)
    assert changed()
    HookRegistry()
    assert counts[-1] == REGISTRATIONS.changes


def test_a_registry_is_iterated_hook_by_hook_in_order_of_registration():
    a, b = Named("a", points=(BEFORE_TOOL, AFTER_TOOL)), Named("b")
    assert list(HookRegistry([a, b])) == [a, b]
    assert len(HookRegistry([a, b])) == 2


def test_the_error_about_hooks_that_are_no_list_names_the_type():
    with pytest.raises(RegistrationError, match="hooks must be a list of hooks or a HookRegistry, not int"):
        HookRegistry().extend(3)
    with pytest.raises(RegistrationError, match="not str"):
        HookRegistry().extend("read")


async def test_a_fire_outside_a_run_is_the_current_one_only_while_it_lasts():
    seen, window = [], BaseContext()
    registry = HookRegistry()
    registry.on(BEFORE_TOOL, lambda ctx, call: seen.append((FIRED.get(), CURRENT.get(), ctx)))
    await registry.fire(BEFORE_TOOL, CALL, ctx=window)
    assert seen == [(scope_of(window), None, window)]
    assert FIRED.get() is None


# Firing by hand


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, ["builtin", "p", "q"]),
        ([], ["builtin"]),
        (["p"], ["builtin", "p"]),
        (("q", "unknown"), ["builtin", "q"]),
        ({"p", "q"}, ["builtin", "p", "q"]),
        (lambda: (name for name in ["q"]), ["builtin", "q"]),
    ],
)
async def test_allowed_plugins_filters_by_plugin(allowed, expected):
    allowed = allowed() if callable(allowed) else allowed
    calls = []
    registry = HookRegistry([Named("builtin", calls)])
    for name in ("p", "q"):
        registry.register(Named(name, calls), plugin=name)
    await registry.fire(BEFORE_TOOL, CALL, allowed_plugins=allowed)
    assert calls == expected


async def test_fire_takes_a_mapping_as_payload():
    registry = HookRegistry()
    seen = []
    registry.on("message_received", lambda ctx, inbound: seen.append(inbound.message))
    await registry.fire("message_received", {"message": {"text": "hi", "sender": "ann"}})
    assert seen == [InboundMessage("hi", sender="ann")]


@pytest.mark.parametrize("payload", [{}, {"task": 3}, {"task": "x", "typo": 1}, CALL, "text", None], ids=repr)
async def test_fire_rejects_a_payload_that_does_not_match(payload):
    with pytest.raises(TypeError, match="on_run_start|RunStart"):
        await HookRegistry().fire(ON_RUN_START, payload)


async def test_fire_rejects_an_unknown_point():
    with pytest.raises(RegistrationError, match="unknown point"):
        await HookRegistry().fire("nowhere", CALL)


async def test_fire_uses_the_given_context_or_creates_one():
    seen = []
    registry = HookRegistry()
    registry.on(ON_RUN_START, lambda ctx, start: seen.append(ctx))
    mine = BaseContext()
    await registry.fire(ON_RUN_START, RunStart("hi"), ctx=mine)
    await registry.fire(ON_RUN_START, RunStart("hi"))
    assert seen[0] is mine
    assert isinstance(seen[1], BaseContext)


async def test_a_change_while_firing_counts_from_the_next_fire_on():
    calls = []
    registry = HookRegistry()
    late = Named("late", calls)

    @hook(BEFORE_TOOL)
    async def changes(ctx, call):
        calls.append("changes")
        registry.register(late)
        registry.unregister(leaving)
        await asyncio.sleep(0)

    leaving = Named("leaving", calls)
    registry.extend([changes, leaving])
    await registry.fire(BEFORE_TOOL, CALL)
    assert calls == ["changes", "leaving"]
    calls.clear()
    registry.unregister(changes)
    await registry.fire(BEFORE_TOOL, CALL)
    assert calls == ["late"]


async def test_a_hook_may_fire_a_point_itself():
    registry = HookRegistry()

    @hook(BEFORE_TOOL)
    async def outer(ctx, call):
        inner = await registry.fire(ON_RUN_START, {"task": call.name}, ctx=ctx)
        return call.replace(name=inner.payload.task)

    registry.register(outer)
    registry.on(ON_RUN_START, lambda ctx, start: start.replace(task=start.task + "!"))
    assert (await registry.fire(BEFORE_TOOL, CALL)).payload.name == "read!"


async def test_nothing_registered_means_the_payload_passes():
    verdict = await HookRegistry().fire(BEFORE_TOOL, CALL)
    assert verdict.payload is CALL
    assert verdict.action == "cont"


async def test_concurrent_fires_do_not_share_anything():
    registry = HookRegistry()

    @hook(ON_RUN_START)
    async def slow(ctx, start):
        await asyncio.sleep(0.001)
        return start.replace(task=start.task * 2)

    @observer(ON_RUN_START)
    async def watch(ctx, start, verdict):
        await asyncio.sleep(0.001)
        ctx.scratch["seen"] = (start.task, verdict.hook)

    registry.extend([slow, watch])
    windows = [BaseContext() for _ in range(20)]
    verdicts = await asyncio.gather(
        *(registry.fire(ON_RUN_START, RunStart(str(n)), ctx=ctx) for n, ctx in enumerate(windows))
    )
    assert [v.payload.task for v in verdicts] == [str(n) * 2 for n in range(20)]
    assert [ctx.scratch["seen"] for ctx in windows] == [(str(n) * 2, "slow") for n in range(20)]


async def test_a_closed_failure_reaches_the_caller():
    @guard(BEFORE_TOOL)
    def broken(ctx, call):
        raise ValueError("oh no")

    with pytest.raises(HookError, match="hook 'broken' failed at before_tool: ValueError: oh no") as caught:
        await HookRegistry([broken]).fire(BEFORE_TOOL, CALL)
    assert (caught.value.hook, caught.value.point) == ("broken", BEFORE_TOOL)
    assert isinstance(caught.value.__cause__, ValueError)


# Interceptors


class Recorder(PassThrough):
    """An interceptor that records its calls and returns a fixed result."""

    def __init__(self, said=None):
        self.said, self.seen = said, []

    def intercept(self, point, payload, ctx):
        self.seen.append((point, payload, ctx))
        return self.said


async def fired(interceptor, *hooks, point=BEFORE_TOOL, payload=CALL, ctx=None):
    stack = HookStack(compile_hook(interceptor), *(compile_hook(each) for each in hooks))
    return await fire_outside_run(stack.chain(point), point, payload, Scope(ctx))


def test_an_interceptor_is_a_hook_at_every_point():
    registry = HookRegistry([Recorder()])
    assert registry.stack.points == frozenset(POINTS)
    assert {entry.name for point in POINTS for entry in registry.stack.entries(point)} == {"Recorder"}


def test_a_registry_may_be_made_of_a_stack():
    one, two = Named("one"), Named("two")
    stack = HookStack(compile_hook(one), compile_hook(two))
    assert HookRegistry(stack).at(BEFORE_TOOL) == [one, two]


def test_pass_through_registers_no_hook():
    assert len(HookRegistry([PassThrough()])) == 0

    class Mine(PassThrough):
        pass

    assert HookRegistry([Mine()]).stack.points == frozenset(POINTS)


async def test_an_interceptor_gets_point_payload_and_context():
    recorder, window = Recorder(), BaseContext()
    await fired(recorder, ctx=window)
    assert recorder.seen == [(BEFORE_TOOL, CALL, window)]


async def test_pass_through_changes_nothing():
    verdict = await fired(PassThrough())
    assert (verdict.payload, verdict.action) == (CALL, "cont")


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_an_interceptor_returns_counts_as_a_hooks_result(is_async):
    async def later(result):
        return result

    for said, action in ((HookResult.block("no"), "block"), (CALL.replace(name="b"), "replace"), (None, "cont")):
        verdict = await fired(Recorder(later(said) if is_async else said))
        assert verdict.action == action
        assert verdict.hook == ("" if action == "cont" else "Recorder")


async def test_hooks_after_an_interceptor_see_its_changes():
    calls = []
    watch = observer(BEFORE_TOOL)(lambda ctx, call: calls.append(call.name))
    await fired(Recorder(CALL.replace(name="other")), watch)
    assert calls == ["other"]


async def test_a_failure_of_an_interceptor_names_it():
    class Broken(PassThrough):
        def intercept(self, point, payload, ctx):
            raise ValueError("oh no")

    with pytest.raises(HookError, match="hook 'Broken' failed at before_tool: ValueError: oh no"):
        await fired(Broken())
