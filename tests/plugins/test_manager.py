"""PluginManager: finding, switching on and off, reloading; a failing plugin does not affect others."""

import builtins
import os
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline import BEFORE_TOOL, Agent, HookRegistry, RegistrationError, ScriptedModel, call, guard, tool
from hookline.plugins import Plugin, PluginError, PluginManager
from hookline.plugins import plugin as plugin_module
from hookline.plugins.discovery import find_plugins
from tests.properties import examples

from .conftest import RULES, TOOLS


@pytest.fixture
def place(tmp_path):
    return tmp_path / "plugins"


@pytest.fixture
def manager(place):
    made = PluginManager(folder=place, installed=False)
    yield made
    made.close()


def agent_of(*turns, **options):
    return Agent("a", llm=ScriptedModel(turns, loop=True), **options)


def texts(result):
    return [m.content for m in result.messages if m.role == "tool"]


def test_a_plugin_adds_everything_when_on_and_removes_everything_when_off(write, manager):
    write(
        "loud",
        'hooks = ["rules.py:quiet"]\ntools = ["tools.py:shout"]\nchannels = { horn = "horn.py:Horn" }\n',
        rules=RULES,
        tools=TOOLS,
        horn="class Horn: ...",
    )
    agent, registry = agent_of(call("shout", text="boo"), "done"), HookRegistry()
    manager.attach(agent)
    manager.attach(registry)
    plugin = manager.activate("loud")
    assert manager.activate("loud") is plugin
    assert manager.active == agent.plugins == (plugin,)
    assert [e.plugin for e in registry.stack.entries(BEFORE_TOOL)] == ["loud"]
    assert list(manager.channels) == ["horn"]
    assert texts(agent.run("go")) == ["be quiet"]
    manager.deactivate("loud")
    assert (manager.active, agent.plugins, manager.channels, len(agent.tools)) == ((), (), {}, 0)
    assert len(agent.hooks) == len(registry) == 0
    assert texts(agent.run("go"))[0].startswith("Unknown tool 'shout'")
    with pytest.raises(PluginError, match="plugin 'loud' is not active"):
        manager.deactivate("loud")


def test_an_attached_agent_gets_the_active_plugins_and_a_detached_one_loses_them(write, manager):
    write()
    manager.activate("loud")
    agent, registry = agent_of(), HookRegistry()
    for host in (agent, registry):
        manager.attach(host)
        assert len(getattr(host, "hooks", host)) == 1
        manager.detach(host)
        assert len(getattr(host, "hooks", host)) == 0
    write("loud", rules=RULES, tools=TOOLS + "\n")
    assert len(manager.refresh()) == 1
    assert len(agent.tools) == 0


def test_an_agent_with_conflicting_tools_is_not_attached_and_stays_unchanged(write, manager):
    write("first", 'hooks = ["rules.py:quiet"]', rules=RULES)
    write("loud", 'tools = ["tools.py:shout"]', tools=TOOLS)
    manager.activate_all(["first", "loud"])
    agent = agent_of(tools=[own_shout()])
    with pytest.raises(
        RegistrationError, match="plugin 'loud': its tool 'shout' has the same name as a tool of the agent"
    ):
        manager.attach(agent)
    assert (len(agent.hooks), len(agent.tools), agent.plugins) == (0, 1, ())


def own_shout():
    @tool
    def shout() -> str:
        """Shout."""
        return "mine"

    return shout


def test_two_plugins_with_one_tool_are_a_conflict_and_the_later_is_refused(write, manager):
    for id in ("one", "two"):
        write(id, 'tools = ["tools.py:shout"]\n', tools=TOOLS)
    assert (
        manager.activate_all(["one", "two"])
        == {"two": "plugin 'two': plugin 'one' already has a tool 'shout'"}
        == manager.problems
    )
    assert [plugin.name for plugin in manager.active] == ["one"]
    manager.deactivate("one")
    manager.activate("two")
    assert manager.problems == {}


def test_two_plugins_with_one_channel_are_a_conflict(write, manager):
    for id in ("one", "two"):
        write(id, 'channels = { horn = "horn.py:Horn" }\n', horn="class Horn: ...")
    assert "plugin 'one' already has a channel 'horn'" in manager.activate_all(["one", "two"])["two"]


# Where plugins are found


def test_finding_plugins_runs_none_of_their_code(write, place, install):
    install(
        "packaged = acme_pkg\nplain = acme_plain:plugin",
        acme_pkg____init__="1 / 0",
        acme_pkg__plugin__toml='id = "packaged"\nversion = "3.0"\napi = "1"\n',
        acme_plain="1 / 0",
    )
    write("loud", rules="1 / 0", tools="1 / 0")
    write("torn", "id = ")
    (place / "no-plugin").mkdir()
    rows = {row.id: row for row in find_plugins(place)}
    shown = {
        id: (row.source, row.version, bool(row.problem))
        for id, row in rows.items()
        if id in ("loud", "torn", "packaged", "plain", "no-plugin")
    }
    assert shown == {
        "loud": ("folder", "1.0", False),
        "torn": ("folder", "", True),
        "packaged": ("installed", "3.0", False),
        "plain": ("installed", "2.0", False),
    }
    assert "acme_pkg" not in sys.modules


def test_of_two_plugins_with_one_id_neither_is_used_unless_one_is_named(write, place, tmp_path):
    write("a")
    first = write("b", 'id = "a"\nversion = "9"\napi = "1"\n')
    manager = PluginManager(folder=place, installed=False)
    with pytest.raises(PluginError, match=r"'a' is also found at .*: remove all but one, or name the folder"):
        manager.activate("a")
    named = PluginManager(folder=place, named=[first], installed=False)
    assert named.activate("a").version == "9"
    named.close()


def test_an_entry_point_and_its_manifest_must_agree_on_the_id(install):
    install("acme = acme_pkg", acme_pkg____init__="", acme_pkg__plugin__toml='id = "x"\nversion = "3"\napi = "1"\n')
    with pytest.raises(PluginError, match="its entry point is named 'acme', but its manifest has the id 'x'"):
        PluginManager().activate("acme")


def test_the_error_for_an_unknown_plugin_suggests_a_similar_name(write, manager):
    write()
    with pytest.raises(PluginError, match=r"there is no plugin 'lout' .* Did you mean 'loud'\? There are loud"):
        manager.activate("lout")
    with pytest.raises(PluginError, match="plugin 'lout' is not active"):
        manager.reload("lout")


def test_untrusted_files_are_not_loaded(write, place):
    folder = write()
    manager = PluginManager(
        folder=place, installed=False, trust=lambda path: "odd" if path.name == "tools.py" else None
    )
    for name in ("loud", str(folder)):
        with pytest.raises(PluginError, match=r"tools\.py is not trusted: odd"):
            manager.activate(name)


# Failure


@pytest.mark.parametrize(
    ("manifest", "files"),
    [
        ("id = ", {}),
        ('hooks = ["rules.py:quiet"]', {"rules": "1 / 0"}),
        ('hooks = ["rules.py:quiet"]', {"rules": "raise BaseException('x')"}),
        ('activate = "main.py:activate"', {"main": "def activate(api): raise OSError('no room')"}),
        ('activate = "main.py:activate"', {"main": "import sys\ndef activate(api): sys.exit(1)"}),
        ('activate = "main.py:activate"', {"main": "async def activate(api): raise OSError('no room')"}),
        ('activate = "main.py:activate"', {"main": "def activate(api): api.add_tool(3)"}),
        ('activate = "main.py:activate"', {"main": "def activate(api): api.add_hook(3)"}),
        ('tools = ["main.py:Set"]', {"main": "class Set:\n def tools(self): raise OSError('no room')"}),
        (
            'hooks = ["main.py:Odd"]',
            {
                "main": "class Odd:\n @property\n def points(self): raise OSError('no')\n"
                " def __call__(self, point, ctx, payload): ..."
            },
        ),
        (
            'hooks = ["main.py:Odd"]',
            {
                "main": "class Odd:\n points = ('on_run_end',)\n @property\n"
                " def on_event(self): raise OSError('no')\n"
                " def __call__(self, point, ctx, payload): ..."
            },
        ),
        ("[settings.key]\nrequired = true", {}),
        ('hooks = ["rules.py:quiet"]\ntools = ["tools.py:own"]', {"rules": RULES, "tools": TOOLS + "own = shout"}),
    ],
)
def test_a_failing_plugin_is_completely_off_and_does_not_affect_others(write, manager, manifest, files):
    write("good", 'hooks = ["rules.py:quiet"]', rules=RULES)
    write("zeal", 'hooks = ["rules.py:quiet"]', rules=RULES)
    write("bad", manifest, **files)
    agent = agent_of(call("shout"), "done", tools=[own_shout()])
    manager.attach(agent)
    modules = set(sys.modules)
    failed = manager.activate_all(["good", "bad", "zeal"])
    assert set(failed) == {"bad"} == set(manager.problems)
    assert [plugin.name for plugin in manager.active] == ["good", "zeal"]
    assert {entry.plugin for entry in agent.hooks.stack.entries(BEFORE_TOOL)} == {"good", "zeal"}
    new = set(sys.modules) - modules
    assert not any("_bad_" in name for name in new)
    assert agent.run("go").status == "completed"


RAISES = """
from hookline import tool
from hookline.points import POINTS
class Raises:
    points = tuple(POINTS)
    phase = "observe"
    def __call__(self, point, ctx, payload): raise OSError(f"at {point}")
    def on_event(self, event): raise OSError("an event")
    def wrap(self, ctx, payload): raise OSError("around")
class Set:
    def tools(self): return [fall]
@tool(effects=[])
def fall() -> str:
    raise OSError("fell")
def off(): raise OSError("at the end")
"""


def test_a_plugin_that_raises_in_every_method_affects_neither_the_run_nor_other_plugins(write, manager):
    write("loud")
    manifest = 'hooks = ["all.py:Raises"]\ntools = ["all.py:Set"]\ndeactivate = "all.py:off"\n'
    (write("torn", manifest) / "all.py").write_text(RAISES)
    agent = agent_of(call("fall"), call("shout", text="boo"), call("shout", text="hey"), "done")
    manager.attach(agent)
    manager.activate_all(["torn", "loud"])
    result = agent.run("go")
    assert result.status == "completed"
    assert texts(result) == ["OSError: fell", "be quiet", "HEY"]
    assert {"at before_tool", "at on_run_end"} <= {error.message.rpartition("OSError: ")[2] for error in result.errors}
    manager.deactivate("torn")
    assert [hook.name for hook in agent.hooks] == ["quiet"]
    assert "at the end" in manager.problems["torn"]
    assert agent.run("go").errors[0].message.startswith("Unknown tool 'fall'")


def test_when_one_of_two_agents_rejects_a_plugin_the_other_does_not_get_it(write, manager):
    events = []
    main = "from hookline import tool\ndef on(api): tool.events.append('on')\ndef off(): tool.events.append('off')"
    manifest = 'tools = ["tools.py:shout"]\nactivate = "main.py:on"\ndeactivate = "main.py:off"\n'
    write("loud", manifest, tools=TOOLS, main=main)
    tool.events = events
    try:
        first, second = agent_of(), agent_of(tools=[own_shout()])
        manager.attach(first)
        manager.attach(second)
        with pytest.raises(PluginError, match="its tool 'shout' has the same name"):
            manager.activate("loud")
    finally:
        del tool.events
    assert (len(first.tools), first.plugins, manager.active) == (0, (), ())
    assert events == ["on", "off"]


def test_a_configure_that_fails_is_undone():
    def configure(agent):
        raise OSError("no room")

    @guard(BEFORE_TOOL)
    def judge(ctx, request): ...

    agent = agent_of()
    with pytest.raises(OSError, match="no room"):
        agent.plug(Plugin("p", [judge], [own_shout()], configure))
    assert (agent.plugins, len(agent.tools), len(agent.hooks)) == ((), 0, 0)


def test_a_plugin_whose_deactivate_fails_is_off_and_the_error_is_reported(write, manager, caplog):
    write(
        "stuck",
        'hooks = ["rules.py:quiet"]\ndeactivate = "main.py:off"\n',
        rules=RULES,
        main="def off(): raise OSError('no way')",
    )
    agent = agent_of()
    manager.attach(agent)
    manager.activate("stuck")
    manager.deactivate("stuck")
    assert manager.problems == {"stuck": "plugin 'stuck': deactivate failed: OSError: no way"}
    assert (manager.active, len(agent.hooks)) == ((), 0)
    assert "no way" in caplog.text


def test_an_activate_that_hangs_is_abandoned(monkeypatch):
    monkeypatch.setattr(plugin_module, "LIMIT", 0.05)
    gate, late = threading.Event(), []

    def activate(api):
        gate.wait()
        try:
            api.add_hook(3)
        except RegistrationError as error:
            late.append(str(error))

    plugin = Plugin("slow", activate=activate)
    with pytest.raises(RegistrationError, match=r"activate did not return within 0\.05 s"):
        plugin.acquire()
    (thread,) = [thread for thread in threading.enumerate() if "slow" in thread.name]
    gate.set()
    thread.join()
    assert late == ["plugin 'slow': activate() has returned; add hooks, tools and channels while it runs"]


def test_activate_can_add_hooks_and_is_called_once_for_all_agents():
    calls = []

    async def activate(api):
        calls.append(("on", api.settings["n"]))
        api.add_tool(own_shout())
        api.add_channel("horn", object)

    plugin = Plugin(
        "p",
        settings={"n": {"type": "integer", "default": 3}},
        activate=activate,
        deactivate=lambda: calls.append("off"),
    ).configured({"n": 5})
    one, two = agent_of(plugins=[plugin]), agent_of(plugins=[plugin])
    assert ("shout" in one.tools, "shout" in two.tools, list(plugin.channels)) == (True, True, ["horn"])
    one.unplug("p")
    assert (len(one.tools), len(two.tools), calls) == (0, 1, [("on", 5)])
    two.unplug("p")
    assert calls == [("on", 5), "off"]
    assert plugin.tools == ()


def test_a_plugin_for_another_api_version_is_rejected():
    with pytest.raises(RegistrationError, match="made for version 7 of the plugin API; this Hookline has 1: update"):
        Plugin("new", api="7")


def test_the_same_plugin_cannot_be_plugged_in_twice():
    agent = agent_of(plugins=[Plugin("p")])
    with pytest.raises(RegistrationError, match="plugin 'p' is already plugged in: unplug it first"):
        agent.plug(Plugin("p"))


def test_watchers_are_called_and_their_failures_are_logged(write, manager, caplog):
    write()
    told = []

    def broken(plugin, on):
        raise OSError("deaf")

    manager.watch(broken)
    manager.watch(lambda plugin, on: told.append((plugin.name, on, plugin in manager.active)))
    manager.activate("loud")
    manager.deactivate("loud")
    assert told == [("loud", True, True), ("loud", False, True)]
    assert "deaf" in caplog.text


# Check


def test_check_reports_problems_and_leaves_nothing_registered(write, manager, place):
    folder = write()
    assert manager.check("loud") == manager.check(str(folder)) == []
    (folder / "rules.py").write_text("1 / 0")
    (problem,) = manager.check("loud")
    assert "ZeroDivisionError" in problem
    assert (manager.active, manager.problems) == ((), {})
    write("stuck", 'deactivate = "main.py:off"\n', main="def off(): raise OSError('no way')")
    assert manager.check("stuck") == ["plugin 'stuck': deactivate failed: OSError: no way"]
    assert "there is no plugin 'nope'" in manager.check("nope")[0]


def test_an_active_plugin_can_be_checked(write, manager):
    write(
        "sales",
        'points = ["p.py:P"]',
        p="from hookline.payloads import Frozen; from hookline.points import Point\nP = Point('acme_p', Frozen)",
    )
    manager.activate("sales")
    assert manager.check("sales") == []
    assert [plugin.name for plugin in manager.active] == ["sales"]


# Loading anew


def test_refresh_reloads_only_changed_plugins(write, manager):
    folder = write()
    write("still", 'hooks = ["rules.py:quiet"]', rules=RULES)
    agent = agent_of(call("shout", text="boo"), "done")
    manager.attach(agent)
    manager.activate_all(["loud", "still"])
    still = agent.plugins[1]
    assert manager.refresh() == []
    (folder / "rules.py").write_text(RULES.replace("be quiet", "hush"))
    assert manager.refresh() == ["plugin 'loud' was reloaded, version 1.0"]
    assert manager.refresh() == []
    assert {plugin.name for plugin in agent.plugins} == {"loud", "still"}
    assert still in agent.plugins
    assert texts(agent.run("go")) == ["be quiet"]  # of the plugin that is still there, and now the first
    manager.deactivate("still")
    assert texts(agent.run("go")) == ["hush"]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda folder: (folder / "rules.py").write_text("1 / 0"),
        lambda folder: (folder / "plugin.toml").write_text("id = "),
        lambda folder: (folder / "plugin.toml").unlink(),
        lambda folder: (folder / "plugin.toml").write_text('id = "other"\nversion = "1"\napi = "1"\n'),
        lambda folder: (folder / "tools.py").write_text(TOOLS.replace("shout", "yell") + "shout = yell"),
        lambda folder: (folder / "tools.py").write_text(TOOLS + "shout = 1"),
    ],
)
def test_when_a_changed_plugin_is_broken_the_old_version_stays_and_the_error_is_reported_once(write, manager, break_it):
    @tool
    def yell() -> str:
        """Yell."""
        return ""

    folder = write()
    agent = agent_of(call("shout", text="boo"), "done", tools=[yell])
    manager.attach(agent)
    manager.activate("loud")
    modules = {name for name in sys.modules if name.startswith("_hookline_plugin_")}
    break_it(folder)
    (note,) = manager.refresh()
    assert note.startswith("plugin 'loud' has changed, but the old version stays: ")
    assert set(manager.problems) == {"loud"}
    assert manager.refresh() == []
    assert texts(agent.run("go")) == ["be quiet"]
    assert {name for name in sys.modules if name.startswith("_hookline_plugin_")} == modules
    write()
    (folder / "rules.py").write_text(RULES.replace("be quiet", "hush"))
    assert len(manager.refresh()) == 1
    assert texts(agent.run("go")) == ["hush"]
    assert manager.problems == {}


def test_an_installed_package_can_be_reloaded(install):
    rules = "from hookline import observer\n@observer('on_run_end')\ndef one(ctx, result): ...\n"
    manifest = 'id = "acme"\nversion = "3.0"\napi = "1"\nhooks = ["rules.py:one"]\n'
    plain = rules + "from hookline.plugins import Plugin\nplugin = Plugin('plain', [one])"
    files = {"acme_pkg____init__": "", "acme_pkg__plugin__toml": manifest, "acme_pkg__rules": rules}
    site = install("acme = acme_pkg\nplain = acme_plain:plugin", **files, acme_plain=plain)
    manager = PluginManager()
    for name, file in (("acme", "acme_pkg/rules.py"), ("plain", "acme_plain.py")):
        old = manager.activate(name)
        text = (site / file).read_text()
        (site / file).write_text(text.replace("one(", "longer_name_of_one(").replace("[one]", "[longer_name_of_one]"))
        if name == "acme":
            (site / file).write_text(text + "one.anew = True\n")
        new = manager.reload(name)
        assert new is not old
        assert new.hooks[0] is not old.hooks[0]
        (site / file).write_text("1 / 0\n" * 50)
        with pytest.raises(PluginError, match="ZeroDivisionError"):
            manager.reload(name)
        assert manager.active == (new,)
        module = new.hooks[0].fn.__module__
        assert sys.modules[module].__dict__ is new.hooks[0].fn.__globals__
        manager.deactivate(name)
        assert not [
            each for each in sys.modules if each.partition(".")[0] == file.partition("/")[0].removesuffix(".py")
        ]


# Any order of all this


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(("on", "off", "reload", "break", "mend", "refresh")), st.sampled_from("abc")),
        max_size=12,
    )
)
def test_after_any_sequence_of_operations_switching_off_restores_the_initial_state(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("any")
    good = {id: RULES.replace("be quiet", id) for id in "abc"}
    good["c"] += "1 / 0\n"  # this one never works

    def put(id, text):
        (folder / id).mkdir(exist_ok=True)
        (folder / id / "rules.py").write_text(text)
        manifest = f'id = "{id}"\nversion = "1"\napi = "1"\nhooks = ["rules.py:quiet"]\n'
        (folder / id / "plugin.toml").write_text(manifest + ('tools = ["rules.py:shout"]\n' if id == "b" else ""))
        os.utime(folder / id / "rules.py", ns=(put.time, put.time))
        put.time += 1_000_000_000

    put.time = 1_000_000_000_000_000_000
    good["b"] += TOOLS
    for id, text in good.items():
        put(id, text)
    agent, modules = agent_of(), set(sys.modules)
    manager = PluginManager(agent, folder=folder, installed=False)
    on = set()
    for step, id in steps:
        broken = "1 / 0" in (folder / id / "rules.py").read_text()
        if step == "on":
            on |= {id} if not manager.activate_all([id]) else set()
            assert (id in on) or broken
        elif step == "off" and id in on:
            manager.deactivate(id)
            on.discard(id)
        elif step == "reload" and id in on:
            try:
                manager.reload(id)
                assert not broken
            except PluginError:
                assert broken
        elif step in ("break", "mend"):
            put(id, "1 / 0\n" if step == "break" else good[id])
        elif step == "refresh":
            manager.refresh()
        assert {plugin.name for plugin in manager.active} == {plugin.name for plugin in agent.plugins} == on
        assert {entry.plugin for entry in agent.hooks.stack.entries(BEFORE_TOOL)} == on
        assert len(agent.hooks) == len(on)
        assert ("shout" in agent.tools) == ("b" in on)
    manager.close()
    assert (len(agent.hooks), len(agent.tools), agent.plugins) == (0, 0, ())
    assert not {name for name in set(sys.modules) - modules if name.startswith("_hookline_plugin_")}


def test_a_plugin_that_raises_system_exit_does_not_affect_others(write, manager):
    write("good", 'tools = ["tools.py:shout"]\n', tools=TOOLS)
    write(
        "leaver",
        'hooks = ["rules.py:Leave"]\n',
        rules="class Leave:\n    def __init__(self):\n        raise SystemExit(3)",
    )
    assert "SystemExit" in manager.activate_all(["leaver", "good"])["leaver"]
    assert [plugin.name for plugin in manager.active] == ["good"]


def test_if_one_of_two_agents_rejects_the_new_version_both_keep_the_old_one(write, place):
    write()

    def yell() -> str:
        """Yell."""
        return "YELL"

    agent, other = agent_of("hi"), agent_of("hi", tools=[tool(yell)])
    manager = PluginManager(agent, other, folder=place, installed=False)
    old = manager.activate("loud")
    yelling = {"rules": RULES, "tools": TOOLS.replace("shout", "yell")}
    write("loud", 'hooks = ["rules.py:quiet"]\ntools = ["tools.py:yell"]\n', **yelling)
    with pytest.raises(PluginError, match="its tool 'yell' has the same name"):
        manager.reload("loud")
    assert manager.active == (old,)
    for one, names in ((agent, ["shout"]), (other, ["yell", "shout"])):
        assert one.hooks.at(BEFORE_TOOL) == list(old.hooks)
        assert [tool.name for tool in one.tools] == names
        assert one.plugins == (old,)
    manager.close()
    assert [len(one.hooks) for one in (agent, other)] == [0, 0]


def test_when_neither_version_can_be_switched_on_after_a_reload_the_message_says_so(write, place):
    once = """
    import builtins

    def on(api):
        builtins._on = getattr(builtins, "_on", 0) + 1
        assert builtins._on < 2
    """
    write("picky", 'activate = "on.py:on"\n', on=once)
    manager = PluginManager(folder=place, installed=False)
    try:
        manager.activate("picky")
        write("picky", 'activate = "on.py:on"\n', on=f"{once}\n    NEW = 1")
        (note,) = manager.refresh()
    finally:
        vars(builtins).pop("_on", None)
    assert "it is off" in note
    assert manager.active == ()
