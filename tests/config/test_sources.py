"""Settings: where they come from, which one holds, and what is said about wrong ones."""

import math
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.config.errors import ConfigError
from hookline.config.settings import KEYS, DeclaredHook, Settings
from hookline.config.sources import Flag, load
from hookline.records.segments import default_records_path
from hookline.stores.paths import default_approvals_path, default_audit_path, default_runs_path, default_spending_path

words = st.text("abcdef", min_size=1, max_size=6)
VALUES = {
    "model": words.map(lambda word: f"openai:{word}"),
    "base_url": words,
    "instructions": words,
    "api": st.sampled_from(["chat", "responses"]),
    "approvals": st.sampled_from(["ask", "yes", "deny"]),
    "write": st.booleans(),
    "debug": st.booleans(),
    "max_steps": st.integers(0, 99),
    "max_cost": st.integers(0, 99).map(float),
    "mcp": st.lists(words, max_size=3).map(tuple),
}


@st.composite
def sources(draw):
    """Each of three sources gives some keys a value."""
    return [
        {key: draw(VALUES[key]) for key in draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=5))} for _ in range(3)
    ]


def as_text(value):
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_toml(value):
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


@given(sources())
def test_the_later_source_wins_and_is_remembered(given_by):
    in_file, in_env, in_flags = given_by
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder).resolve() / "hookline.toml"
        file.write_text("".join(f"{key} = {as_toml(value)}\n" for key, value in in_file.items()))
        env = {KEYS[key].env: as_text(value) for key, value in in_env.items()}
        flags = [Flag(key, f"--{key}", value) for key, value in in_flags.items()]
        config = load(flags, folder=folder, env=env)
        default = Settings(
            runs=str(default_runs_path(folder)),
            audit=str(default_audit_path(folder)),
            approval_file=str(default_approvals_path(folder)),
            spending_file=str(default_spending_path(folder)),
            records=str(default_records_path(folder)),
        )
    expected = {**in_file, **in_env, **in_flags}
    for key in KEYS:
        assert getattr(config.settings, key) == expected.get(key, getattr(default, key))
        if key in in_flags:
            assert config.origins[key] == f"flag:--{key}"
        elif key in in_env:
            assert config.origins[key] == f"env:{KEYS[key].env}"
        elif key in in_file:
            assert config.origins[key] == f"file:{file}"
        else:
            assert config.origins[key] == "default"


@pytest.mark.parametrize(
    ("name", "default"),
    [("runs", default_runs_path), ("audit", default_audit_path), ("records", default_records_path)],
)
def test_the_default_files_belong_to_the_folder_of_the_configuration(tmp_path, name, default):
    below = tmp_path / "project" / "below"
    below.mkdir(parents=True)
    assert getattr(load(folder=below, env={}).settings, name) == str(default(below))
    (tmp_path / "project" / "hookline.toml").write_text("")
    assert getattr(load(folder=below, env={}).settings, name) == str(default(tmp_path / "project"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "all.toml").write_text("")
    config = load(file=tmp_path / "mine" / "all.toml", folder=below, env={})
    assert getattr(config.settings, name) == str(default(below))


def test_projects_do_not_share_their_approvals(tmp_path):
    one, two = tmp_path / "a" / "shop", tmp_path / "b" / "shop"
    for project in (one, two):
        (project / "below").mkdir(parents=True)
        (project / "hookline.toml").write_text("")
    files = [load(folder=folder, env={}).settings.approval_file for folder in (one, one / "below", two)]
    assert files[0] == files[1] == str(default_approvals_path(one))
    assert files[2] == str(default_approvals_path(two)) != files[0]


def test_hooks_of_all_sources_are_kept_and_none_takes_away_those_before(tmp_path):
    (tmp_path / "hookline.toml").write_text('hooks = ["a:one"]\nplugins = ["p"]')
    env = {"HOOKLINE_HOOKS": "b:two,a:one"}
    config = load([Flag("hooks", "--hooks", ["c:three"])], folder=tmp_path, env=env)
    assert config.settings.hooks == ("a:one", "b:two", "c:three")
    assert config.settings.plugins == ("p",)
    assert config.origins["hooks"] == f"file:{tmp_path / 'hookline.toml'}, env:HOOKLINE_HOOKS, flag:--hooks"
    assert load([Flag("hooks", "--hooks", ["none"])], folder=tmp_path, env=env).settings.hooks == ()


def test_the_nearest_file_upwards_is_the_one_that_counts(tmp_path):
    (tmp_path / "hookline.toml").write_text('model = "openai:far"\nmax_steps = 3')
    near = tmp_path / "a" / "b"
    near.mkdir(parents=True)
    assert load(folder=near, env={}).settings.model == "openai:far"
    (tmp_path / "a" / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert load(folder=near, env={}).settings.model == "openai:far"  # a pyproject that does not speak of us
    (tmp_path / "a" / "pyproject.toml").write_text('[tool.hookline]\nmodel = "openai:near"\n')
    config = load(folder=near, env={})
    assert (config.settings.model, config.settings.max_steps) == ("openai:near", None)
    (tmp_path / "a" / "hookline.toml").write_text('model = "openai:own"')
    assert load(folder=near, env={}).settings.model == "openai:own"


def test_a_named_file_is_read_instead(tmp_path):
    (tmp_path / "hookline.toml").write_text("max_steps = 3")
    other = tmp_path / "other.toml"
    other.write_text("max_steps = 4")
    assert load(file=other, folder=tmp_path, env={}).settings.max_steps == 4
    assert load(folder=tmp_path, env={"HOOKLINE_CONFIG": str(other)}).settings.max_steps == 4
    with pytest.raises(ConfigError, match=r"no such configuration file: .*missing\.toml"):
        load(file=tmp_path / "missing.toml", env={})


@pytest.mark.parametrize("name", ["hookline.toml", "pyproject.toml"])
def test_a_world_writable_file_is_ignored_with_a_note_and_refused_if_it_is_named(tmp_path, name):
    below = tmp_path / "below"
    below.mkdir()
    table = "" if name == "hookline.toml" else "[tool.hookline]\n"
    (tmp_path / "hookline.toml").write_text("max_steps = 3")
    open_file = below / name
    open_file.write_text(f"{table}max_steps = 4")
    open_file.chmod(0o646)
    config = load(folder=below, env={})
    assert config.settings.max_steps == 3
    (note,) = config.notes
    assert note.startswith(f"{open_file} is ignored: every user may write to it; ")
    with pytest.raises(ConfigError, match="is not used: every user may write to it"):
        load(file=open_file, folder=below, env={})
    open_file.chmod(0o644)
    assert load(folder=below, env={}).settings.max_steps == 4


def test_the_digest_of_a_pyproject_covers_only_the_settings(tmp_path):
    file = tmp_path / "pyproject.toml"
    digests = []
    for version, steps in ((1, 3), (2, 3), (2, 4)):
        file.write_text(f'[project]\nversion = "{version}"\n[tool.hookline]\nmax_steps = {steps}\n')
        digests.append(load(folder=tmp_path, env={}).digest)
    assert digests[0] == digests[1] != digests[2]


def test_files_of_others_that_do_not_speak_of_us_are_not_worth_a_word(tmp_path):
    for text in ("[project]\n", "no toml"):
        (tmp_path / "pyproject.toml").write_text(text)
        (tmp_path / "pyproject.toml").chmod(0o666)
        assert load(folder=tmp_path, env={}).notes == ()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_or_link_of_another_user_is_ignored(tmp_path, linked):
    file = tmp_path / "hookline.toml"
    if linked:
        (tmp_path / "mine.toml").write_text("max_steps = 4")
        file.symlink_to(tmp_path / "mine.toml")
    else:
        file.write_text("max_steps = 4")
    assert load(folder=tmp_path, env={}).settings.max_steps == 4
    os.chown(file, 12345, 12345, follow_symlinks=False)
    config = load(folder=tmp_path, env={})
    assert config.settings.max_steps is None
    assert "belongs to another user" in config.notes[0]


@pytest.mark.parametrize(("given", "runs"), [("runs.db", "{}/runs.db"), (":memory:", ":memory:"), ("none", None)])
def test_the_file_of_runs_is_beside_the_configuration_unless_there_is_none(tmp_path, given, runs):
    (tmp_path / "hookline.toml").write_text(f'runs = "{given}"\n')
    assert load(folder=tmp_path, env={}).settings.runs == (runs and runs.format(tmp_path))


def test_paths_in_a_file_are_relative_to_the_file_and_others_to_the_working_folder(tmp_path):
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "hookline.toml").write_text(
        'folder = "data"\nmodel = "scripted:turns.json"\napproval_file = "approvals.db"\n'
        'hooks = ["rules.py", "rules.py:one", "package.rules:two", { use = "more.py:Three" }]'
    )
    settings = load(folder=below, env={"HOOKLINE_TOOLS": "tools.py"}).settings
    assert settings.folder == str(tmp_path / "data")
    assert settings.approval_file == str(tmp_path / "approvals.db")
    assert settings.model == f"scripted:{tmp_path / 'turns.json'}"
    assert settings.hooks == (
        str(tmp_path / "rules.py"),
        f"{tmp_path / 'rules.py'}:one",
        "package.rules:two",
        DeclaredHook(f"{tmp_path / 'more.py'}:Three"),
    )
    assert settings.tools == (str(below / "tools.py"),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('modle = "x"', ["unknown key 'modle'", "Did you mean 'model'?"]),
        ("max_steps = true", ["max_steps: expected a whole number, 0 or more, or none; got True"]),
        ('max_steps = "many"', ["max_steps: expected a whole number, 0 or more, or none; got 'many'"]),
        ("max_cost = -1", ["max_cost: expected a number, 0 or more, or none; got -1"]),
        ('api = "soap"', ["api: expected one of chat, responses, or none; got 'soap'"]),
        ('hooks = "rules.py"', ["hooks: expected a list"]),
        ('hooks = [{ usr = "a:b" }]', ["a hook has no 'usr'. Did you mean 'use'?"]),
        ("hooks = [{ priority = 3 }]", ['a hook needs use = "module:name"']),
        ('hooks = [{ use = "a:b", priority = "high" }]', ["a:b", "priority"]),
        ("params = 3", ["params: expected a table"]),
        ('model "x"', ["not valid TOML", "line 1"]),
    ],
)
def test_an_invalid_file_is_reported_with_the_key_and_the_expected_value(tmp_path, text, says):
    file = tmp_path / "hookline.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as failure:
        load(folder=tmp_path, env={})
    assert str(file) in str(failure.value)
    for part in says:
        assert part in str(failure.value)


def test_a_variable_that_is_nearly_a_setting_is_an_error_and_others_are_not():
    with pytest.raises(ConfigError, match="HOOKLINE_MODLE is unknown. Did you mean 'HOOKLINE_MODEL'?"):
        load(env={"HOOKLINE_MODLE": "x"}, folder="/")
    load(env={"HOOKLINE_CACHE": "x", "HOOKLINE_SOMETHING_ELSE": "y", "MODEL": "z"}, folder="/")
    with pytest.raises(ConfigError, match="HOOKLINE_MAX_STEPS: expected a whole number"):
        load(env={"HOOKLINE_MAX_STEPS": "x"}, folder="/")


def test_none_unsets_and_an_empty_variable_says_nothing():
    env = {"HOOKLINE_MAX_STEPS": "none", "HOOKLINE_HOOKS": "None", "HOOKLINE_PARAMS": "none", "HOOKLINE_WRITE": ""}
    settings = load(env=env, folder="/").settings
    assert (settings.max_steps, settings.hooks, settings.params, settings.write) == (math.inf, (), {}, False)
    assert load(env=env, folder="/").origins["write"] == "default"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("model", "a text"),
        ("folder", "a text"),
        ("write", "true or false"),
        ("approvals", "one of ask, wait, yes, deny"),
    ],
)
def test_none_for_a_required_setting_is_reported_with_valid_values(key, expected):
    with pytest.raises(ConfigError, match=f"^--{key}: expected {expected}; it cannot be none$"):
        load([Flag(key, f"--{key}", "none")], env={}, folder="/")


def test_a_list_can_be_a_json_array_so_that_items_may_hold_commas():
    env = {
        "HOOKLINE_MCP": '["server --roots a,b", "https://example.org/mcp"]',
        "HOOKLINE_HOOKS": ' [{"use": "a:B", "args": {"most": 3}}]',
        "HOOKLINE_PLUGINS": "p, q",
    }
    settings = load(env=env, folder="/").settings
    assert settings.mcp == ("server --roots a,b", "https://example.org/mcp")
    assert settings.hooks == (DeclaredHook("a:B", {"most": 3}),)
    assert settings.plugins == ("p", "q")
    with pytest.raises(ConfigError, match="HOOKLINE_MCP: invalid JSON array"):
        load(env={"HOOKLINE_MCP": '["server'}, folder="/")
    with pytest.raises(ConfigError, match="HOOKLINE_MCP: expected a list of texts"):
        load(env={"HOOKLINE_MCP": "[3]"}, folder="/")


def test_a_file_can_say_none_too(tmp_path):
    (tmp_path / "hookline.toml").write_text('max_steps = "none"')
    assert load(folder=tmp_path, env={}).settings.max_steps == math.inf


def test_params_are_pairs_with_json_values():
    settings = load(
        [Flag("params", "--param", ["temperature=0.5", "stop=[1]", "user=me"])], env={}, folder="/"
    ).settings
    assert settings.params == {"temperature": 0.5, "stop": [1], "user": "me"}
    assert load(env={"HOOKLINE_PARAMS": '{"stop": ["a", "b"]}'}, folder="/").settings.params == {"stop": ["a", "b"]}
    with pytest.raises(ConfigError, match="HOOKLINE_PARAMS: invalid JSON object"):
        load(env={"HOOKLINE_PARAMS": '{"stop"'}, folder="/")
    with pytest.raises(ConfigError, match="--param: expected KEY=VALUE"):
        load([Flag("params", "--param", ["temperature"])], env={}, folder="/")


def test_sessions_are_not_kept_in_the_working_folder():
    folder = Path(load(env={}, folder="/").settings.sessions)
    assert folder.is_absolute()
    assert Path(os.getcwd()) not in folder.parents


def test_settings_cannot_be_changed_in_place():
    settings = load([Flag("params", "--param", ["a=1"])], env={}, folder="/").settings
    with pytest.raises(AttributeError):
        settings.model = "x"
    with pytest.raises(TypeError):
        settings.params["a"] = 2


def test_a_later_model_of_another_kind_does_not_take_over_the_server_of_the_one_before(tmp_path):
    (tmp_path / "hookline.toml").write_text('base_url = "http://mine/v1"\nmodel = "openai:llama3"\napi = "responses"')
    same = load([Flag("model", "--model", "openai:other")], folder=tmp_path, env={})
    assert (same.settings.base_url, same.settings.api) == ("http://mine/v1", "responses")
    other = load([Flag("model", "--model", "anthropic:claude")], folder=tmp_path, env={})
    assert (other.settings.base_url, other.settings.api) == (None, None)
    assert other.origins["base_url"] == f"default; file:{tmp_path / 'hookline.toml'} was for openai:llama3"
    flags = [Flag("base_url", "--base-url", "http://theirs"), Flag("model", "--model", "anthropic:claude")]
    assert load(flags, folder=tmp_path, env={}).settings.base_url == "http://theirs"


def test_paths_in_the_args_of_built_in_hooks_start_at_the_file(tmp_path):
    (tmp_path / "hookline.toml").write_text(
        "hooks = [\n"
        '  { use = "AuditLogHook", args = { path = "logs/a.jsonl" } },\n'
        '  { use = "MemoryInjectionHook", args = { memory = ":memory:" } },\n'
        '  { use = "NotesInjectorHook", args = { notes = "~/notes.md", max_chars = 3 } },\n'
        '  { use = "PersistSessionHook", args = { store = "/abs" } },\n'
        '  { use = "ToolOutputTruncatorHook", args = { artifacts = true } },\n'
        '  { use = "rules.py:Mine", args = { path = "as/it/is" } },\n'
        '  { use = "RoleBasedAccessHook", args = { key = "role" } },\n'
        '  { use = "hookline.tape:TapeHook", args = { path = "tapes" } },\n'
        '  { use = "TapeHook", args = { path = "tapes" } },\n'
        "]\n"
    )
    (tmp_path / "below").mkdir()
    hooks = load(folder=tmp_path / "below", env={}).settings.hooks
    assert [hook.args for hook in hooks] == [
        {"path": f"{tmp_path}/logs/a.jsonl"},
        {"memory": ":memory:"},
        {"notes": str(Path("~/notes.md").expanduser()), "max_chars": 3},
        {"store": "/abs"},
        {"artifacts": True},
        {"path": "as/it/is"},
        {"key": "role"},
        {"path": f"{tmp_path}/tapes"},
        {"path": f"{tmp_path}/tapes"},
    ]


def test_metadata_is_a_table_in_a_file_or_pairs_of_words(tmp_path):
    (tmp_path / "hookline.toml").write_text('metadata = { user_role = ["guest", "staff"] }')
    assert load(folder=tmp_path, env={}).settings.metadata == {"user_role": ["guest", "staff"]}
    flag = Flag("metadata", "--metadata", ["user_role=admin", "level=3"])
    assert load([flag], folder=tmp_path, env={}).settings.metadata == {"user_role": "admin", "level": 3}
    env = {"HOOKLINE_METADATA": '{"user_role": "support"}'}
    assert load(folder=tmp_path, env=env).settings.metadata == {"user_role": "support"}
