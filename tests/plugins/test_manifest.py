"""Manifests, permissions and settings of plugins."""

import pytest

from hookline.plugins import PluginError, load_plugin
from hookline.plugins.errors import LoadError
from hookline.plugins.manifest import PERMISSIONS, permission_meaning, read_manifest

GOOD = 'id = "a"\nversion = "1.0"\napi = "1"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id = ", "is not valid TOML"),
        ('id = "a"\nversion = "1"', "api is missing"),
        ('version = "1"\napi = "1"', "id is missing"),
        (GOOD + 'hoks = ["x.py"]', "unknown key 'hoks'. Did you mean 'hooks'?"),
        (GOOD.replace('"a"', '"A plugin"'), "lower-case letters"),
        (GOOD.replace('"a"', '"../a"'), "lower-case letters"),
        (GOOD + 'hooks = "x.py"', "Expected `array`"),
        (GOOD + 'permissions = ["netwrk"]', "there is no permission 'netwrk'. Did you mean 'network'?"),
        (GOOD + "settings = 3", "settings must be a table"),
        (
            GOOD + '[settings.n]\ntype = "int"',
            "settings.n: there is no type 'int'. Did you mean 'integer'. It is one of string,",
        ),
        (GOOD + '[settings.n]\ntyp = "integer"', "settings.n has no 'typ'. Did you mean 'type'?"),
        (GOOD + '[settings.n]\ntype = "integer"\ndefault = "x"', "settings.n: expected integer; got 'x'"),
        (GOOD + '[settings.key]\nenv = "ACME_KEY"', r'permissions = \["secrets:ACME_KEY"\]'),
        (
            GOOD.replace('api = "1"', 'api = "2"\nnew_key = 1'),
            "made for version 2 .* this Hookline has 1: update hookline",
        ),
        (GOOD + "x = " + "[" * 5000, "is not valid TOML"),
        (GOOD + "x = 1" + "0" * 5000, "is not valid TOML"),
        (GOOD.replace('api = "1"', 'api = "²"'), "made for version ² .* install a version of the plugin"),
        (GOOD.replace('api = "1"', f'api = "{"9" * 5000}"'), "made for version 9+ .* update hookline"),
        (GOOD.replace('api = "1"', "api = 0"), "made for version 0 .* install a version of the plugin for API 1"),
    ],
)
def test_an_invalid_manifest_gives_an_error_with_its_file(tmp_path, text, says):
    (tmp_path / "plugin.toml").write_text(text)
    with pytest.raises(LoadError, match=says) as caught:
        read_manifest(tmp_path / "plugin.toml")
    assert str(tmp_path) in str(caught.value)


def test_a_manifest_needs_only_three_keys(tmp_path):
    (tmp_path / "plugin.toml").write_text(GOOD.replace('"1"\n', "1\n"))
    manifest = read_manifest(tmp_path / "plugin.toml")
    assert (manifest.id, manifest.version, manifest.api, manifest.required) == ("a", "1.0", "1", True)


def test_every_permission_has_a_meaning():
    assert all(permission_meaning(name) for name in (*PERMISSIONS, "secrets:KEY"))
    assert "KEY" in permission_meaning("secrets:KEY")


NEEDS = {
    "rewrite": "from hookline import hook\n@hook('before_llm')\ndef part(ctx, request): ...",
    "approve": "from hookline import hook\n@hook('approval_requested')\ndef part(ctx, request): ...",
    "dangerous": "from hookline import tool\n@tool(dangerous=True)\ndef part(): ...",
}


@pytest.mark.parametrize("permission", NEEDS)
def test_a_plugin_that_needs_another_permission_is_rejected(write, permission):
    kind = "tools" if permission == "dangerous" else "hooks"
    parts = f'{kind} = ["parts.py:part"]\n'
    folder = write("p", parts, parts=NEEDS[permission])
    with pytest.raises(PluginError, match=rf'plugin \'p\': .*add permissions = \["{permission}"\]'):
        load_plugin(folder)
    write("p", parts + f'permissions = ["{permission}"]', parts=NEEDS[permission])
    assert load_plugin(folder).permissions == (permission,)


def test_a_tool_that_declares_no_effects_counts_as_dangerous_and_the_error_says_how_to_declare_them(write):
    code = "from hookline import tool\n@tool\ndef part(): ..."
    folder = write("p", 'tools = ["parts.py:part"]\n', parts=code)
    with pytest.raises(
        PluginError, match=r"'part' .*declares no effects.*permissions.*or declare .*effects=\['read'\]"
    ):
        load_plugin(folder)
    write("p", 'tools = ["parts.py:part"]\n', parts=code.replace("@tool", "@tool(effects=['read'])"))
    assert load_plugin(folder).permissions == ()


def test_hooks_added_by_activate_need_permissions_too(write, scripted_agent):
    code = NEEDS["rewrite"] + "\ndef activate(api): api.add_hook(part)"
    plugin = load_plugin(write("p", 'activate = "parts.py:activate"', parts=code))
    with pytest.raises(PluginError.__mro__[2], match="add permissions"):
        scripted_agent([], plugins=[plugin])


def test_guards_observers_and_harmless_tools_need_no_permission(write, scripted_agent):
    plugin = load_plugin(write())
    assert plugin.permissions == ()
    assert scripted_agent([], plugins=[plugin]).plugins == (plugin,)


SETTINGS = """
hooks = ["rules.py:limit"]
[settings.most]
type = "integer"
minimum = 1
maximum = 9
[settings.mode]
choices = ["soft", "hard"]
default = "soft"
[settings.key]
required = true
secret = true
env = "ACME_KEY"
"""
LIMIT = """
from hookline import BEFORE_TOOL, guard
class Limit:
    points = (BEFORE_TOOL,)
    phase = "guard"
    def __init__(self, settings): self.settings = settings
    def __call__(self, point, ctx, request): ...
limit = Limit
"""


@pytest.fixture
def limited(write):
    return write("p", 'permissions = ["secrets:ACME_KEY"]' + SETTINGS, rules=LIMIT)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"key": "k", "most": "3"}, r"plugin_settings\.p\.most: expected integer; got '3'"),
        ({"key": "k", "most": True}, "expected integer; got True"),
        ({"key": "k", "most": 0}, "expected integer; got 0 .*at least 1"),
        ({"key": "k", "most": 10}, "at most 9"),
        ({"key": "k", "mode": "loud"}, "mode: .*one of 'soft', 'hard'"),
        ({"key": "k", "moost": 3}, "no setting 'moost'. Did you mean 'most'?"),
        ({}, r"key: it is required: give it in \[plugin_settings\.p\], or set the environment variable ACME_KEY"),
    ],
)
def test_invalid_settings_are_rejected(limited, monkeypatch, given, says):
    monkeypatch.delenv("ACME_KEY", raising=False)
    with pytest.raises(PluginError, match=says):
        load_plugin(limited, settings=given)


def test_a_secret_is_in_no_message(limited):
    with pytest.raises(PluginError, match="key: expected string") as caught:
        load_plugin(limited, settings={"key": 12345})
    assert "12345" not in str(caught.value)


def test_hooks_are_made_with_the_effective_settings(limited, monkeypatch):
    monkeypatch.setenv("ACME_KEY", "from outside")
    (hook,) = load_plugin(limited, settings={"most": 3}).hooks
    assert dict(hook.settings) == {"most": 3, "mode": "soft", "key": "from outside"}


def test_an_environment_variable_of_the_wrong_type_is_rejected(write, monkeypatch):
    manifest = 'permissions = ["secrets:ACME_N"]\n[settings.n]\ntype = "integer"\nenv = "ACME_N"\n'
    monkeypatch.setenv("ACME_N", "many")
    with pytest.raises(PluginError, match="environment variable ACME_N is not a valid integer"):
        load_plugin(write("p", manifest))
    monkeypatch.setenv("ACME_N", "7")
    assert load_plugin(write("p", manifest)).values == {"n": 7}
