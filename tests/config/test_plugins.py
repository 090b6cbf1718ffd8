"""Plugins that settings name."""

import os
import sys

import pytest

from hookline._toolbox.files import file_tools
from hookline.config.editing import add_to_list, remove_from_list
from hookline.config.errors import ConfigError
from hookline.config.factory import build_agent, build_hooks, build_plugins, use_plugins
from hookline.config.settings import Settings
from hookline.config.sources import load
from hookline.plugins import PluginError, PluginManager
from hookline.testing import call, reply, scripted_agent

RULES = "from hookline import BEFORE_TOOL, guard\n@guard(BEFORE_TOOL)\ndef judge(ctx, request): ...\n"


@pytest.fixture
def home(tmp_path):
    (tmp_path / "turns.json").write_text('["hi"]')
    return tmp_path


@pytest.fixture
def write(home):
    def put(id, more="", rules=RULES, folder="plugins"):
        place = home / folder / id
        place.mkdir(parents=True, exist_ok=True)
        (place / "plugin.toml").write_text(f'id = "{id}"\nversion = "1"\napi = "1"\nhooks = ["rules.py:judge"]\n{more}')
        (place / "rules.py").write_text(rules)
        return place

    return put


def settings_of(home, text=""):
    (home / "hookline.toml").write_text(f'model = "scripted:turns.json"\n{text}')
    return load(folder=home, env={})


def names(agent):
    return [plugin.name for plugin in agent.plugins]


def test_plugins_are_found_beside_the_configuration_and_by_path(home, write, monkeypatch):
    monkeypatch.chdir("/")
    write("loud")
    write("far", folder="elsewhere")
    write("third", folder="more/plugins")
    config = settings_of(home, 'plugins = ["loud", "./elsewhere/far"]')
    assert names(build_agent(config.settings, home=config.home)) == ["loud", "far"]
    config = settings_of(home, 'plugins_folder = "more/plugins"\nplugins = ["third"]')
    assert names(build_agent(config.settings, home=config.home)) == ["third"]


def test_plugins_get_their_settings(home, write):
    write("loud", "[settings.n]\ntype = 'integer'\n")
    config = settings_of(home, 'plugins = ["loud"]\n[plugin_settings.loud]\nn = 3\n')
    agent = build_agent(config.settings, home=config.home)
    assert agent.plugins[0].values == {"n": 3}
    config = settings_of(home, 'plugins = ["loud"]\n[plugin_settings.loud]\nn = "x"\n')
    with pytest.raises(PluginError, match=r"plugin_settings\.loud\.n: expected integer"):
        build_agent(config.settings, home=config.home)


def test_settings_of_a_missing_plugin_are_reported(home, write):
    write("loud")
    config = settings_of(home, 'plugins = ["loud"]\n[plugin_settings.loudd]\nn = 3\n')
    told = []
    build_agent(config.settings, home=config.home, notify=told.append)
    assert told == ["plugin_settings.loudd: there is no plugin 'loudd'. Did you mean 'loud'?"]


def test_an_agent_is_not_built_without_a_required_plugin_and_all_are_deactivated(home, write):
    write("good")
    write("loud", rules="1 / 0")
    config = settings_of(home, 'plugins = ["good", "loud"]')
    manager = build_plugins(config.settings, config.home)
    with pytest.raises(
        PluginError, match=r"ZeroDivisionError.* does not start without this plugin.*hookline plugins disable loud"
    ):
        build_agent(config.settings, home=config.home, plugins=manager)
    assert manager.active == ()
    assert not [name for name in sys.modules if name.startswith("_hookline_plugin_good")]
    with pytest.raises(PluginError, match="there is no plugin 'gone'"):
        build_agent(settings_of(home, 'plugins = ["gone"]').settings, home=home)


def test_an_optional_plugin_that_fails_is_skipped_with_a_note(home, write):
    write("loud", "required = false\n", rules="1 / 0")
    write("good")
    config = settings_of(home, 'plugins = ["loud", "good"]')
    told = []
    agent = build_agent(config.settings, home=config.home, notify=told.append)
    assert names(agent) == ["good"]
    (note,) = told
    assert note.endswith("The agent continues without it")


def test_lenient_callers_continue_without_a_broken_plugin(home, write):
    write("loud", rules="1 / 0")
    write("good")
    manager, agent = PluginManager(folder=home / "plugins"), scripted_agent([])
    (note,) = use_plugins(manager, agent, ["loud", "good"], lenient=True)
    assert "ZeroDivisionError" in note
    assert names(agent) == ["good"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_a_world_writable_plugin_is_not_loaded(home, write):
    place = write("loud", rules="1 / 0")
    os.chmod(place / "rules.py", 0o666)
    config = settings_of(home, 'plugins = ["loud"]')
    with pytest.raises(PluginError, match=r"rules\.py is not trusted: every user may write to it"):
        build_agent(config.settings, home=config.home)


@pytest.mark.parametrize("path", ["plugins/loud/rules.py", "plugins/loud/new.py", "elsewhere/far/plugin.toml"])
def test_the_code_of_plugins_is_not_the_agents_to_change(home, write, monkeypatch, path):
    monkeypatch.chdir(home)
    write("loud")
    write("far", folder="elsewhere")
    (home / "plugins" / "other").mkdir()
    settings = Settings(folder=str(home), write=True, plugins=(str(home / "elsewhere/far"),))
    registry, _ = build_hooks(settings, home)

    def outcome(path):
        turns = [call("write_file", path=path, content="x"), reply("done")]
        return scripted_agent(turns, tools=file_tools(home, write=True), hooks=registry).run("go").steps[0].outcomes

    assert outcome(path) == ("blocked",)
    assert outcome("plugins/other/notes.txt") == ("ok",)


# Changing the file

COMMENTED = '# mine\nmodel = "x"  # the best\n\nplugins = [\n  "a",  # first\n]\n\n[params]\nt = 1 # keep\n'


def test_a_list_in_a_file_is_edited_and_the_rest_is_unchanged(tmp_path):
    path = tmp_path / "hookline.toml"
    path.write_text(COMMENTED)
    path.chmod(0o640)
    assert add_to_list(path, "plugins", "b")
    assert path.read_text() == COMMENTED.replace('  "a",  # first\n', '  "a",  # first\n  "b",\n')
    assert not add_to_list(path, "plugins", "b")
    assert remove_from_list(path, "plugins", "b")
    assert path.read_text() == COMMENTED
    assert not remove_from_list(path, "plugins", "b")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_missing_list_is_inserted_before_the_tables(tmp_path):
    path = tmp_path / "hookline.toml"
    path.write_text('model = "x"\n\n[params]\nt = 1\n')
    add_to_list(path, "plugins", "b")
    assert path.read_text() == 'model = "x"\nplugins = ["b"]\n\n[params]\nt = 1\n'


def test_a_missing_file_is_created(tmp_path):
    path = tmp_path / "hookline.toml"
    assert not remove_from_list(path, "plugins", "b")
    assert not path.exists()
    add_to_list(path, "plugins", "b")
    assert path.read_text() == 'plugins = ["b"]\n'


def test_in_a_shared_file_only_our_own_table_is_changed(tmp_path):
    path, text = tmp_path / "pyproject.toml", '[project]\nname = "x" # me\n\n[tool.hookline]\nmodel = "local"\n'
    path.write_text(text)
    add_to_list(path, "plugins", "b")
    assert path.read_text() == text + 'plugins = ["b"]\n'


@pytest.mark.parametrize(("text", "says"), [("a = ", "is not valid TOML"), ("plugins = 3", "plugins is not a list")])
def test_a_file_that_cannot_be_edited_is_unchanged(tmp_path, text, says):
    path = tmp_path / "hookline.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        add_to_list(path, "plugins", "b")
    assert path.read_text() == text
