"""Where settings come from, how they merge, and what is reported about them."""

import json
import os

import pytest

from hookline import RegistrationError, call
from hookline.adapters.claude_code import ClaudeHooks, settings


def command(text, **more):
    return {"type": "command", "command": text, **more}


def hooks_of(*handlers, event="PreToolUse", matcher=""):
    return {"hooks": {event: [{"matcher": matcher, "hooks": list(handlers)}]}}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The folders of all levels; a function writes the settings of one."""
    home, work, policy = tmp_path / "home", tmp_path / "work", tmp_path / "etc" / "managed-settings.json"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(settings, "MANAGED", str(policy))
    files = {
        "user": home / ".claude" / "settings.json",
        "project": work / ".claude" / "settings.json",
        "local": work / ".claude" / "settings.local.json",
        "managed": policy,
    }
    work.mkdir()

    def write(level, table):
        files[level].parent.mkdir(parents=True, exist_ok=True)
        files[level].write_text(json.dumps(table))
        return work

    return write


def commands(hooks):
    return [handler.command for handler in hooks.handlers]


def test_a_project_merges_the_settings_of_all_levels(places):
    for level in ("project", "user", "managed", "local"):
        work = places(level, hooks_of(command(f"echo {level}")))
    assert commands(ClaudeHooks(work)) == ["echo user", "echo project", "echo local", "echo managed"]


def test_a_file_stands_for_itself(places):
    places("user", hooks_of(command("echo user")))
    work = places("project", hooks_of(command("echo project")))
    assert commands(ClaudeHooks(work / ".claude" / "settings.json")) == ["echo project"]


def test_several_places_are_merged(places, tmp_path):
    work = places("project", hooks_of(command("echo project")))
    plugin = tmp_path / "plugin" / "hooks" / "hooks.json"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(json.dumps({"description": "A plugin", **hooks_of(command("echo $CLAUDE_PLUGIN_ROOT"))}))
    hooks = ClaudeHooks([work / ".claude" / "settings.json", plugin])
    assert commands(hooks) == ["echo project", "echo $CLAUDE_PLUGIN_ROOT"]
    assert hooks.handlers[1].env["CLAUDE_PLUGIN_ROOT"] == str(tmp_path / "plugin")


@pytest.mark.parametrize(
    ("levels", "called"),
    [
        ({"project": True}, []),
        ({"user": True}, []),
        ({"user": True, "local": False}, ["user", "project", "local"]),
        ({"project": True, "managed": None}, ["managed"]),
        ({"managed": True}, []),
    ],
)
def test_disable_all_hooks_of_the_highest_level_counts_but_not_for_hooks_of_the_organisation(places, levels, called):
    for level in ("user", "project", "local", *(["managed"] if "managed" in levels else [])):
        off = {"disableAllHooks": levels[level]} if levels.get(level) is not None else {}
        work = places(level, {**hooks_of(command(level)), **off})
    hooks = ClaudeHooks(work)
    assert commands(hooks) == called
    if not called:
        assert "disableAllHooks" in hooks.not_called[0]


def test_an_organisation_can_allow_only_its_own_hooks(places):
    places("managed", {**hooks_of(command("managed")), "allowManagedHooksOnly": True})
    hooks = ClaudeHooks(places("project", hooks_of(command("project"))))
    assert commands(hooks) == ["managed"]
    assert "the organisation allows only its own hooks" in hooks.not_called[0]


def test_identical_hooks_of_several_files_and_matchers_run_once(project):
    line = 'echo x >> "$CLAUDE_PROJECT_DIR"/count'
    project.add("PreToolUse", line, "Bash").add("PreToolUse", line, "*").add("PreToolUse", line, "Bash")
    other = project.write("other.json", json.dumps(project.settings))
    project.run([call("shell", command="true"), "Ok."], settings=[project.file, other])
    assert (project.folder / "count").read_text() == "x\n"


@pytest.mark.parametrize("event", ["FileChanged", "TeammateIdle", "StopFailure", "PreModelSwitch", "SomethingNew"])
def test_an_event_without_a_moment_is_reported_by_name_and_the_others_work(project, event, caplog):
    project.add(event, "echo never").add("PreToolUse", "exit 2")
    hooks = project.hooks()
    (note,) = hooks.not_called
    assert f"hooks.{event}" in note
    assert str(project.file) in note
    assert note in caplog.text
    assert [handler.event for handler in hooks.handlers] == ["PreToolUse"]


@pytest.mark.parametrize("kind", ["prompt", "agent", "mcp_tool"])
def test_a_handler_that_hookline_does_not_run_is_an_error_unless_it_is_left_out_knowingly(project, kind):
    project.add("Stop", "true")
    project.settings["hooks"]["Stop"][0]["hooks"].append({"type": kind, "prompt": "Is it done?"})
    with pytest.raises(RegistrationError, match=rf"hooks.Stop\[0\].hooks\[1\].*type '{kind}'.*skip=\['{kind}'\]"):
        project.hooks()
    hooks = project.hooks(skip=[kind])
    assert len(hooks.handlers) == 1
    assert f"hooks.Stop[0].hooks[1]: a handler of type '{kind}' is left out" in hooks.not_called[0]


def test_plugins_of_claude_code_are_reported(project):
    project.settings["enabledPlugins"] = {"format@tools": True}
    assert "enabledPlugins" in project.hooks().not_called[0]


def test_an_if_at_an_event_without_a_tool_is_reported_and_never_called(project):
    project.add("Stop", "exit 2", **{"if": "Bash(git *)"})
    hooks = project.hooks()
    assert hooks.handlers == ()
    assert "'if' is for tool events only" in hooks.not_called[0]


HANDLER = {"type": "command", "command": "true"}
URL = {"type": "http", "url": "http://localhost:1/"}
MALFORMED = {
    "not JSON": ("{", "is not valid JSON"),
    "nested too deeply": ("[" * 300_000, "is not valid JSON"),
    "5 MB": (" " * 5_000_001, "is longer than 5000000 bytes"),
    "half of a surrogate pair": (hooks_of({**HANDLER, "command": "\ud800"}), "is not valid JSON"),
    "a list": ("[]", "the file must be a JSON object"),
    "not UTF-8": (b'"\xff"', "is not valid JSON"),
    "hooks is a list": ({"hooks": []}, "hooks: expected an object"),
    "an event is an object": ({"hooks": {"Stop": {}}}, "hooks.Stop: expected a list"),
    "a misspelt event": ({"hooks": {"PreToolUze": []}}, "there is no event 'PreToolUze'. Did you mean 'PreToolUse'"),
    "a group without hooks": ({"hooks": {"Stop": [{"matcher": ""}]}}, r"hooks.Stop\[0\]: expected"),
    "a matcher that is a list": ({"hooks": {"PreToolUse": [{"matcher": ["Bash"], "hooks": []}]}}, "expected a text"),
    "a broken matcher": ({"hooks": {"PreToolUse": [{"matcher": "(", "hooks": []}]}}, "not a valid regular expression"),
    "a handler that is a text": (hooks_of("true"), "expected an object"),
    "no type": (hooks_of({"command": "true"}), "expected one of command, http"),
    "a misspelt type": (hooks_of({"type": "comand"}), "Did you mean 'command'"),
    "no command": (hooks_of({"type": "command"}), "expected a command"),
    "an empty command": (hooks_of({**HANDLER, "command": " "}), "expected a command"),
    "args that are a text": (hooks_of({**HANDLER, "args": "a b"}), "expected a list of texts"),
    "a shell that does not exist": (hooks_of({**HANDLER, "shell": "fish"}), "expected bash or powershell"),
    "a timeout of 0": (hooks_of({**HANDLER, "timeout": 0}), "expected a positive number of seconds"),
    "a timeout that is a text": (hooks_of({**HANDLER, "timeout": "5"}), "expected a positive number of seconds"),
    "async is a text": (hooks_of({**HANDLER, "async": "yes"}), "expected true or false"),
    "a broken rule": (hooks_of({**HANDLER, "if": "Bash(git"}), "is not a permission rule"),
    "on_failure": (hooks_of({**HANDLER, "on_failure": "shut"}), "expected open, block or closed"),
    "onFailure": (hooks_of({**HANDLER, "onFailure": "explode"}), "expected block"),
    "no URL": (hooks_of({"type": "http"}), "cannot be used"),
    "a URL with a password": (hooks_of({"type": "http", "url": "http://a:b@localhost/"}), "cannot be used"),
    "headers": (hooks_of({**URL, "headers": {"A": 1}}), "object of texts"),
    "allowedEnvVars": (hooks_of({**URL, "allowedEnvVars": "A"}), "list of names"),
    "a URL at SessionStart": (hooks_of(URL, event="SessionStart"), "only commands"),
    "disableAllHooks": ({"disableAllHooks": "yes"}, "must be true or false"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "problem"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_settings_are_an_error_that_names_the_file_and_the_place(tmp_path, content, problem):
    file = tmp_path / "settings.json"
    text = content if isinstance(content, (str, bytes)) else json.dumps(content)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RegistrationError, match=problem) as raised:
        ClaudeHooks(file)
    assert str(file) in str(raised.value)


def test_an_empty_file_and_a_file_without_hooks_have_none(tmp_path):
    for content in ("", "{}", '{"permissions": {"allow": ["Bash"]}}'):
        (tmp_path / "settings.json").write_text(content)
        assert ClaudeHooks(tmp_path / "settings.json").handlers == ()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"settings": "nowhere.json"}, "no such file or folder"),
        ({"settings": []}, "needs a settings file"),
        ({"skip": "prompt"}, "skip= must be a list"),
        ({"skip": ["command"]}, "skip= must be a list"),
        ({"on_failure": "shut"}, "open, block or closed"),
        ({"folder": "nowhere"}, "does not exist"),
        ({"tools": {"Bash": 7}}, "must be the name of one of your tools"),
    ],
)
def test_invalid_arguments_are_an_error(project, options, problem):
    with pytest.raises(RegistrationError, match=problem):
        project.hooks(**options)


def test_a_project_without_any_settings_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(RegistrationError, match="there are no settings of Claude Code for"):
        ClaudeHooks(tmp_path)


def test_timeouts_depend_on_the_event(project):
    for event in ("PreToolUse", "UserPromptSubmit", "SessionEnd"):
        project.add(event, "true")
    project.add("SessionEnd", "false", timeout=500).add("Stop", "true", timeout=7)
    timeouts = [(handler.event, handler.timeout) for handler in project.hooks().handlers]
    assert timeouts == [
        ("PreToolUse", 600),
        ("UserPromptSubmit", 30),
        ("SessionEnd", 1.5),
        ("SessionEnd", 60),
        ("Stop", 7),
    ]


def test_only_the_points_of_events_with_hooks_are_used(project):
    assert project.hooks().points == frozenset()
    project.add("Stop", "true")
    assert project.hooks().points == {"on_run_start", "on_stop", "before_step"}


@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling link", "link to itself"])
def test_something_else_in_place_of_a_settings_file_is_an_error(places, kind):
    work = places("user", hooks_of(command("true")))
    file = work / ".claude" / "settings.json"
    file.parent.mkdir()
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("nowhere" if kind == "dangling link" else file.name)
    for place in (work, file):
        if not (kind == "folder" and place == file):
            with pytest.raises(RegistrationError, match=r"settings\.json"):
                ClaudeHooks(place)


def test_a_key_that_occurs_twice_is_reported(tmp_path):
    handlers = json.dumps([{"hooks": [command("exit 2")]}])
    (tmp_path / "settings.json").write_text(f'{{"hooks": {{"PreToolUse": {handlers}, "PreToolUse": []}}}}')
    hooks = ClaudeHooks(tmp_path / "settings.json")
    assert hooks.handlers == ()
    assert "'PreToolUse' occurs twice in one object" in hooks.not_called[0]


@pytest.mark.parametrize(
    ("event", "matcher", "called"),
    [
        ("PreCompact", "manual", False),
        ("PostCompact", "manual|auto", True),
        ("Notification", "idle_prompt", False),
        ("Notification", "permission_.*", True),
        ("SessionStart", "fork", False),
        ("SessionStart", "compact", True),
    ],
)
def test_a_matcher_that_selects_nothing_here_is_reported(project, event, matcher, called):
    project.add(event, "true", matcher)
    notes = project.hooks().not_called
    assert bool(notes) is not called
    assert called or f"it is never called, because '{matcher}' does not occur here" in notes[0]
