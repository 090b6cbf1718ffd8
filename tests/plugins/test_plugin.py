"""Plugins: bundles of hooks and tools, given by hand or found in installed packages."""

import importlib
import sys
import textwrap

import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, RegistrationError, call, guard, hook, tool
from hookline.hooks import TimingHook, default_slm_hooks, limits_plugin
from hookline.plugins import Plugin, installed_plugins, load_plugin


@tool
def ping() -> str:
    """Ping."""
    return "pong"


def no_pings():
    @guard(BEFORE_TOOL)
    def refuse(ctx, request):
        return HookResult.block("no pings")

    return refuse


def tool_text(result):
    return [m.content for m in result.messages if m.role == "tool"]


async def test_a_plugin_adds_hooks_tools_and_configuration(scripted_agent):
    def configure(agent):
        agent.instructions = "be kind"

    refuse = no_pings()
    plugin = Plugin("pings", [refuse], [ping], configure)
    agent = scripted_agent([call("ping"), "done"], plugins=[plugin])
    assert agent.hooks.at(BEFORE_TOOL) == [refuse]
    assert agent.hooks.stack.entries(BEFORE_TOOL)[0].plugin == "pings"
    assert agent.tools.get("ping") is ping
    assert agent.instructions == "be kind"
    assert agent.plugins == (plugin,)
    assert tool_text(await agent.arun("go")) == ["no pings"]
    assert repr(plugin) == "Plugin('pings', 1 hooks, 1 tools)"


@pytest.mark.parametrize(
    ("allowed", "text"), [(None, "no pings"), (["pings"], "no pings"), ([], "pong"), (["x"], "pong")]
)
async def test_allowed_plugins_selects_the_plugins_of_a_run(scripted_agent, allowed, text):
    agent = scripted_agent([call("ping"), "done"], tools=[ping], plugins=[Plugin("pings", [no_pings()])])
    assert tool_text(await agent.arun("go", allowed_plugins=allowed)) == [text]


async def test_an_unplugged_plugin_is_off_in_later_runs(scripted_agent):
    agent = scripted_agent([call("ping"), "done"], plugins=[Plugin("pings", [no_pings()], [ping])])
    agent.hooks.unregister_plugin("pings")
    assert tool_text(await agent.arun("go")) == ["pong"]


async def test_hooks_outside_plugins_run_even_if_no_plugin_is_allowed(scripted_agent):
    agent = scripted_agent([call("ping"), "done"], tools=[ping], hooks=[no_pings()])
    assert tool_text(await agent.arun("go", allowed_plugins=[])) == ["no pings"]


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_plugin_needs_a_name(name):
    with pytest.raises(RegistrationError, match="a plugin needs a name"):
        Plugin(name)


def test_a_tool_with_the_name_of_another_is_rejected(scripted_agent):
    with pytest.raises(RegistrationError, match="'ping' has the same name"):
        scripted_agent([], tools=[ping], plugins=[Plugin("pings", tools=[ping])])


def test_a_plugins_hook_that_cannot_work_is_refused(scripted_agent):
    with pytest.raises(RegistrationError, match="is not a hook"):
        scripted_agent([], plugins=[Plugin("bad", hooks=["text"])])


# Installed packages


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package on sys.path whose metadata offers plugins."""
    (tmp_path / "acme_hooks.py").write_text(
        textwrap.dedent(
            """
            from hookline import BEFORE_TOOL, HookResult, guard
            from hookline.plugins import Plugin

            @guard(BEFORE_TOOL)
            def refuse(ctx, request):
                return HookResult.block("acme says no")

            class Refuse:
                points = (BEFORE_TOOL,)
                def __call__(self, point, ctx, request):
                    return HookResult.block("acme object says no")

            whole = Plugin("acme", [refuse])
            many = [refuse, Refuse()]
            one = Refuse()
            wrong = 3
            """
        )
    )
    info = tmp_path / "acme_hooks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-hooks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hookline.plugins]\n"
        "acme = acme_hooks:whole\n"
        "acme-many = acme_hooks:many\n"
        "acme-one = acme_hooks:one\n"
        "acme-function = acme_hooks:refuse\n"
        "acme-wrong = acme_hooks:wrong\n"
        "acme-missing = acme_hooks:missing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("acme_hooks", None)


@pytest.mark.usefixtures("installed")
def test_installed_plugins_are_listed_without_importing_them():
    assert {"acme", "acme-many", "acme-one", "acme-wrong"} <= set(installed_plugins())
    assert "acme_hooks" not in sys.modules


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "plugin", "hooks"),
    [
        ("acme", "acme", 1),
        ("acme-many", "acme-many", 2),
        ("acme-one", "acme-one", 1),
        ("acme-function", "acme-function", 1),
    ],
)
def test_an_entry_point_is_a_plugin_a_hook_or_a_list_of_hooks(name, plugin, hooks):
    loaded = load_plugin(name)
    assert isinstance(loaded, Plugin)
    assert (loaded.name, len(loaded.hooks)) == (plugin, hooks)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["acme", "acme-one", "acme-function"])
async def test_an_agent_takes_an_installed_plugin_by_name(scripted_agent, name):
    agent = scripted_agent([call("ping"), "done"], tools=[ping], plugins=[name])
    (text,) = tool_text(await agent.arun("go"))
    assert text.startswith("acme")


@pytest.mark.usefixtures("installed")
def test_an_entry_point_that_is_something_else_is_refused():
    with pytest.raises(
        RegistrationError, match="plugin 'acme-wrong': it is a int; expected a Plugin, a hook or a list"
    ):
        load_plugin("acme-wrong")


@pytest.mark.usefixtures("installed")
def test_an_entry_point_that_cannot_be_loaded_names_the_plugin():
    with pytest.raises(RegistrationError, match="acme-missing"):
        load_plugin("acme-missing")


@pytest.mark.usefixtures("installed")
def test_the_error_for_an_unknown_plugin_suggests_a_similar_name():
    with pytest.raises(
        RegistrationError, match=r"no installed plugin 'acmee'\. Did you mean 'acme'\? Installed: \[.*'acme'"
    ):
        load_plugin("acmee")


@pytest.mark.usefixtures("installed")
def test_an_agent_with_an_unknown_plugin_is_refused(scripted_agent):
    with pytest.raises(RegistrationError, match="no installed plugin"):
        scripted_agent([], plugins=["nowhere"])


def test_the_registry_given_to_an_agent_is_shared_with_its_plugins():
    from hookline import HookRegistry, ScriptedModel

    @hook(BEFORE_TOOL)
    def mine(ctx, request): ...

    registry = HookRegistry([mine])
    agent = Agent("a", llm=ScriptedModel(), hooks=registry, plugins=[Plugin("p", [no_pings()])])
    assert len(agent.hooks.at(BEFORE_TOOL)) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"plugins": [default_slm_hooks()]}, r"contains a list: if these are hooks, write hooks=\[\*...\]"),
        (
            {"plugins": [limits_plugin]},
            r"limits_plugin is not a plugin: if it makes one, call it: plugins=\[limits_plugin\(\)\]",
        ),
        ({"plugins": [TimingHook()]}, r"TimingHook is a hook: pass it as hooks=\[...\]"),
        ({"plugins": [3]}, "3 is neither a plugin nor the name of an installed one"),
        ({"plugins": "limits"}, r"plugins must be a list of plugins, not 'limits': write plugins=\[...\]"),
        ({"plugins": limits_plugin()}, r"not Plugin: write plugins=\[...\]"),
        ({"hooks": [limits_plugin()]}, r"Plugin\('limits', 3 hooks, 0 tools\) is a plugin: pass it as plugins=\[...\]"),
        ({"hooks": [default_slm_hooks()]}, r"it is a list: unpack it with \*"),
        ({"hooks": [TimingHook]}, r"it is a class: write TimingHook\(\)"),
        ({"tools": [TimingHook()]}, r"TimingHook is a hook: pass it as hooks=\[...\]"),
    ],
)
def test_an_object_in_the_wrong_argument_gives_an_error_that_names_the_right_one(scripted_agent, given, says):
    with pytest.raises(RegistrationError, match=says):
        scripted_agent([], **given)


def test_a_plugin_among_the_hooks_of_a_run_gives_an_error_that_names_the_right_argument(scripted_agent):
    with pytest.raises(RegistrationError, match="is a plugin"):
        scripted_agent(["hi"]).run("go", hooks=[limits_plugin()])


def test_metadata_that_is_no_mapping_is_refused(scripted_agent):
    with pytest.raises(TypeError, match="metadata= takes a dict such as .*, not 'admin'"):
        scripted_agent(["hi"]).run("go", metadata="admin")
