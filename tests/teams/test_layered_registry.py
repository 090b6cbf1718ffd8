"""LayeredRegistry: a registry on top of another."""

from hookline import HookRegistry, guard
from hookline.teams.personality_folder import LayeredRegistry


def named(name):
    @guard("before_tool", name=name)
    def judge(ctx, payload):
        return None

    return judge


def names(registry):
    return [entry.name for entry in registry.stack.entries("before_tool")]


def test_hooks_of_the_base_run_first_regardless_of_priority():
    base = HookRegistry([named("base")])
    layered = LayeredRegistry(base)
    layered.register(named("own"), priority=500)
    assert names(layered) == ["base", "own"]
    assert names(base) == ["base"]


def test_changes_of_the_base_take_effect():
    base = HookRegistry()
    layered = LayeredRegistry(base, [named("own")])
    take_out = base.register(named("late"))
    assert names(layered) == ["late", "own"]
    take_out()
    assert names(layered) == ["own"]


def test_hooks_of_the_base_cannot_be_removed_in_the_layer():
    rule = named("base")
    base = HookRegistry([rule])
    base.register(named("plugin's"), plugin="p")
    layered = LayeredRegistry(base)
    layered.register(named("own"), plugin="p")
    layered.unregister(rule)
    layered.unregister_plugin("p")
    assert names(layered) == ["base", "plugin's"]


def test_a_copy_has_all_hooks():
    base = HookRegistry([named("base")])
    layered = LayeredRegistry(base, [named("own")])
    for other in (layered.copy(), HookRegistry(layered)):
        assert names(other) == ["base", "own"]
        assert len(other) == len(list(other)) == 2
    layered.copy().register(named("more"))
    assert names(layered) == ["base", "own"]


def test_the_stack_is_the_same_object_until_something_changes():
    layered = LayeredRegistry(HookRegistry([named("base")]), [named("own")])
    assert layered.stack is layered.stack
