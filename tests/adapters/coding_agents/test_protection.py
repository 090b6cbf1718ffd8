"""Entries of Hookline in the settings of coding agents: added without losing anything, and removed without a trace."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.adapters.coding_agents.codecs import codec_of
from hookline.adapters.coding_agents.options import AGENTS
from hookline.adapters.coding_agents.protection import changes
from hookline.adapters.coding_agents.protection.changes import (
    Memory,
    ProtectError,
    apply_change,
    plan_protection,
    plan_removal,
    undo,
)
from hookline.adapters.coding_agents.protection.hosts import HOSTS
from hookline.adapters.coding_agents.protection.json_edit import JsonText, without
from hookline.adapters.coding_agents.protection.settings import add_entries, has_all, own_entries, remove_entries
from tests.cases import each_case

KINDS = ["session_start", "prompt", "before_tool", "after_tool"]
FOREIGN = {"type": "command", "command": "notify-send 'a tool'", "bash": "notify-send"}


def wanted(agent, program="/opt/venv/bin/hookline"):
    return codec_of(agent).settings(f"{program} agent-hook --agent {agent} /home/ada/rules.py", KINDS, 30)


@pytest.fixture
def memory(tmp_path):
    return Memory(tmp_path / "data" / "protect.json")


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))


def protect(agent, path, memory, text=None):
    change = plan_protection(HOSTS[agent], path, text or wanted(agent), memory, project=False)
    if change.is_needed:
        apply_change(change, memory)
    return change


def remove(agent, path, memory):
    change = plan_removal(HOSTS[agent], path, memory)
    undo(change, memory)
    return change


# Random settings.

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
groups = st.sampled_from([{"hooks": [FOREIGN]}, {"matcher": "x", "hooks": [FOREIGN, FOREIGN]}, {"hooks": []}, FOREIGN])
events = st.sampled_from([*codec_of("gemini").events, "Other"])
hooks = st.dictionaries(events, st.lists(groups, max_size=2), max_size=3)
objects = st.dictionaries(st.text(max_size=6).filter(lambda name: name != "hooks"), values, max_size=3)
settings = st.builds(
    lambda others, own: others if own is None else {**others, "hooks": own}, objects, st.none() | hooks
)
spaces = st.text(" \t\n", max_size=3) | st.sampled_from(["/* é */", "// more\n", "\r\n  "])


@st.composite
def written(draw, value):
    """Return JSON with spaces and comments wherever they may be."""

    def space():
        return draw(spaces)

    def text(each):
        if isinstance(each, dict):
            members = [
                f"{space()}{json.dumps(key)}{space()}:{space()}{text(item)}{space()}" for key, item in each.items()
            ]
            return f"{{{','.join(members) or space()}}}"
        if isinstance(each, list):
            return f"[{','.join(f'{space()}{text(item)}{space()}' for item in each) or space()}]"
        return json.dumps(each)

    return space() + text(value) + space()


def others(settings):
    return {key: value for key, value in settings.items() if key != "hooks"}


@given(value=settings, data=st.data())
def test_entries_are_added_to_any_settings_and_removed_without_a_trace(value, data):
    text = data.draw(written(value))
    changed = JsonText(text, comments=True)
    assert changed.root.plain() == value
    needed = json.loads(wanted("gemini"))
    add_entries(changed, needed)
    after = JsonText(changed.text, comments=True)
    assert has_all(after, needed, "gemini")
    assert without(changed.text, changed.spans) == text  # nothing but insertions, and they are known
    plain = after.root.plain()
    for event, items in value.get("hooks", {}).items():
        assert plain["hooks"][event][: len(items)] == items
    assert others(plain) == others(value)
    assert list(plain)[: len(value)] == list(value)
    # Without what is remembered, the entries are found by their commands.
    assert remove_entries(after, "gemini")
    left = after.root.plain()
    kept = {event: items for event, items in value.get("hooks", {}).items() if items}
    assert {event: items for event, items in left.get("hooks", {}).items() if items} == kept
    assert others(left) == others(value)
    assert [after.text.count(each) for each in ("é", "more")] == [text.count(each) for each in ("é", "more")]


@given(value=settings, data=st.data())
def test_a_file_gets_its_bytes_back(value, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    path, memory = folder / "settings.json", Memory(folder / "memory" / "protect.json")
    before = data.draw(written(value)).encode()
    path.write_bytes(before)
    protect("gemini", path, memory)
    once = path.read_bytes()
    assert not protect("gemini", path, memory).is_needed
    protect("gemini", path, memory, wanted("gemini", "/new/venv/bin/hookline"))
    assert b"/opt/venv" not in path.read_bytes()
    protect("gemini", path, memory)
    assert path.read_bytes() == once
    remove("gemini", path, memory)
    assert path.read_bytes() == before
    assert not memory.path.exists()


# Files.


@pytest.mark.parametrize("agent", AGENTS)
def test_a_new_file_is_gone_after_removal_with_its_folders(agent, tmp_path, memory):
    path = tmp_path / "new" / "folder" / HOSTS[agent].user_settings
    protect(agent, path, memory)
    assert path.read_bytes()
    assert not protect(agent, path, memory).is_needed
    remove(agent, path, memory)
    assert not (tmp_path / "new").exists()
    assert not memory.path.exists()


@pytest.mark.parametrize("agent", AGENTS)
def test_another_installation_takes_the_place_of_the_entry(agent, tmp_path, memory):
    path = tmp_path / HOSTS[agent].user_settings
    protect(agent, path, memory)
    protect(agent, path, memory, wanted(agent, "/other/bin/hookline"))
    text = path.read_text()
    assert "/opt/venv" not in text
    if not HOSTS[agent].is_plugin:
        entries = own_entries(json.loads(text), agent)
        assert len(entries) == len({entry.event for entry in entries}) > 0
    remove(agent, path, memory)
    assert not path.exists()


def test_entries_are_removed_from_a_file_that_was_changed_since(tmp_path, memory):
    path = tmp_path / "settings.json"
    path.write_text('{"theme": "dark"}')
    protect("gemini", path, memory)
    now = json.loads(path.read_text())
    now["hooks"]["BeforeTool"].insert(0, {"hooks": [FOREIGN]})
    now["hooks"]["AfterTool"][0]["hooks"].append(FOREIGN)
    now["more"] = [1]
    path.write_text(json.dumps(now))
    remove("gemini", path, memory)
    left = {"BeforeTool": [{"hooks": [FOREIGN]}], "AfterTool": [{"hooks": [FOREIGN]}]}
    assert json.loads(path.read_text()) == {"theme": "dark", "hooks": left, "more": [1]}


def test_entries_of_another_agent_and_of_others_stay(tmp_path, memory):
    path = tmp_path / "settings.json"
    other = json.loads(wanted("claude"))
    path.write_text(json.dumps(other))
    protect("qwen", path, memory)
    remove("qwen", path, memory)
    assert json.loads(path.read_text()) == other


def test_removal_needs_nothing_that_is_remembered(tmp_path, memory):
    path = tmp_path / "settings.json"
    path.write_text('{\n  "theme": "dark"\n}\n')
    protect("claude", path, memory)
    memory.path.unlink()
    remove("claude", path, Memory(memory.path))
    assert path.read_text() == '{\n  "theme": "dark"\n}\n'


def test_a_link_stays_a_link_and_the_mode_stays(tmp_path, memory):
    real, path = tmp_path / "dotfiles" / "claude.json", tmp_path / "settings.json"
    real.parent.mkdir()
    real.write_text('{"a": 1}')
    real.chmod(0o640)
    path.symlink_to(real)
    protect("claude", path, memory)
    assert path.is_symlink()
    assert own_entries(json.loads(real.read_text()), "claude")
    assert real.stat().st_mode & 0o777 == 0o640
    remove("claude", path, memory)
    assert path.is_symlink()
    assert real.read_text() == '{"a": 1}'


@each_case(
    ("agent", "text", "problem"),
    [
        ("claude", b'{"a": 1,}', "line 1: a text in double quotes is expected"),
        ("claude", b'{\n  // mine\n  "a": 1}', "line 2: a comment, which this agent does not read"),
        ("gemini", b'{"a": [1, ]}', "line 1: a value is expected"),
        ("gemini", b"[]", "an object is expected"),
        ("gemini", b'{"hooks": {}, "hooks": {}}', "'hooks' is there twice"),
        ("gemini", b'{"hooks": []}', "hooks is not an object"),
        ("gemini", b'{"hooks": {"BeforeTool": {}}}', "hooks.BeforeTool is not a list"),
        ("gemini", b'{"a": "\xff"}', "not text in UTF-8"),
        ("gemini", b'{"a": 1} x', "there is more behind the object"),
        ("gemini", b'{"a": "x', "a text in double quotes is expected"),
        ("gemini", b'{"a": 1 /* ', "a comment does not end"),
        ("gemini", b"[" * 100_000, "an object is expected"),
        ("gemini", b'{"a":' + b"[" * 100_000, "nested too deeply"),
        ("cursor", b'{"version": 2}', "version is 2"),
        ("opencode", b"export const Other = 1", "not the plugin of Hookline"),
    ],
)
def test_settings_that_are_not_understood_are_an_error_and_stay(agent, text, problem, tmp_path, memory):
    path = tmp_path / "file"
    path.write_bytes(text)
    with pytest.raises(ProtectError, match="file") as raised:
        protect(agent, path, memory)
    assert problem in str(raised.value)
    assert path.read_bytes() == text
    assert not memory.path.exists()


def test_a_link_to_nothing_and_a_folder_are_errors(tmp_path, memory):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for path, problem in (
        (tmp_path / "link", "a link to a file that does not exist"),
        (tmp_path, "not a regular file"),
    ):
        with pytest.raises(ProtectError, match=problem):
            protect("claude", path, memory)


def test_a_file_that_changes_before_it_is_written_is_left_alone(tmp_path, memory):
    path = tmp_path / "settings.json"
    path.write_text("{}")
    change = plan_protection(HOSTS["claude"], path, wanted("claude"), memory, project=False)
    path.write_text('{"new": 1}')
    with pytest.raises(ProtectError, match="changed in the meantime"):
        apply_change(change, memory)
    assert path.read_text() == '{"new": 1}'


def test_a_write_that_fails_leaves_the_old_file(tmp_path, memory, monkeypatch):
    path = tmp_path / "settings.json"
    path.write_text('{"a": 1}')

    def full(*args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(changes, "replace_file", full)
    with pytest.raises(ProtectError, match="No space left"):
        protect("claude", path, memory)
    assert path.read_text() == '{"a": 1}'


def test_settings_of_another_user_are_refused(tmp_path, memory, monkeypatch):
    path = tmp_path / "settings.json"
    path.write_text("{}")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ProtectError, match="belongs to another user"):
        protect("claude", path, memory)
