"""hookline plugins, and hookline new plugin."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def hookline(in_process):
    return in_process


def write(folder, id, more=""):
    place = folder / id
    place.mkdir(parents=True)
    (place / "plugin.toml").write_text(f'id = "{id}"\nversion = "1.2"\napi = "1"\n{more}')
    return place


@pytest.mark.slow
def test_a_new_plugin_works_and_its_test_passes(hookline, here):
    code, out, _ = hookline("new", "plugin", "word-watch")
    assert code == 0
    assert "hookline plugins enable word-watch" in out
    assert hookline("plugins", "check", "word-watch")[0] == 0
    code, out, _ = hookline("plugins", "check", "./plugins/word-watch")
    assert (code, out.splitlines()[0]) == (0, "word-watch 0.1.0: no problems found")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "plugins"],
        cwd=here,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), "HOME": str(here)},
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "says"), [("Word Watch", "try 'word-watch'"), ("../x", "try 'x'")])
def test_a_name_that_cannot_be_an_id_is_refused_with_another(hookline, here, name, says):
    code, _, err = hookline("new", "plugin", name)
    assert (code, says in err) == (2, True)
    assert list(here.iterdir()) == []


def test_a_new_plugin_overwrites_nothing(hookline, here):
    (here / "plugins" / "mine").mkdir(parents=True)
    assert hookline("new", "plugin", "mine")[0] == 2
    assert list((here / "plugins" / "mine").iterdir()) == []


@pytest.mark.slow
def test_a_plugin_is_enabled_used_and_disabled(hookline, here):
    (here / "turns.json").write_text(json.dumps([{"tool": "count_words", "arguments": {"text": "a password"}}, "done"]))
    (here / "hookline.toml").write_text('# mine\nmodel = "scripted:turns.json"  # a script\n')
    hookline("new", "plugin", "word-watch")
    code, out, _ = hookline("plugins", "enable", "word-watch", "--yes")
    assert (code, "enabled: added word-watch to plugins in hookline.toml" in out) == (0, True)
    text = (here / "hookline.toml").read_text()
    assert text == '# mine\nmodel = "scripted:turns.json"  # a script\nplugins = ["word-watch"]\n'
    assert hookline("plugins", "enable", "word-watch")[1] == "word-watch is already enabled\n"
    assert "agent, plugin word-watch" in hookline("hooks")[1]
    code, _, err = hookline("run", "count")
    assert (code, "'password' is not allowed here." in err) == (0, True)
    assert hookline("plugins", "list")[1].splitlines()[1].split()[:3] == ["word-watch", "0.1.0", "on"]
    code, out, _ = hookline("plugins", "disable", "word-watch")
    assert (code, out) == (0, "disabled: removed word-watch from plugins in hookline.toml\n")
    assert "plugins = []" in (here / "hookline.toml").read_text()
    code, _, err = hookline("plugins", "disable", "word-watch")
    assert (code, "does not enable 'word-watch'" in err) == (2, True)


def test_a_plugin_elsewhere_is_enabled_and_disabled_by_its_path(hookline, here):
    write(here / "far", "one")
    assert hookline("plugins", "enable", "./far/one", "--yes")[0] == 0
    assert (here / "hookline.toml").read_text() == 'plugins = ["./far/one"]\n'
    assert hookline("plugins", "list")[1].splitlines()[1].split()[:3] == ["one", "1.2", "on"]
    assert hookline("plugins", "disable", "one")[0] == 0
    assert (here / "hookline.toml").read_text() == "plugins = []\n"


def test_without_a_terminal_nothing_is_enabled_without_yes(hookline, here, monkeypatch):
    write(here / "plugins", "one", 'permissions = ["network", "rewrite", "secrets:ACME_KEY"]\n')
    code, out, err = hookline("plugins", "enable", "one")
    assert (code, "add --yes" in err) == (2, True)
    shown = [" ".join(line.split()) for line in out.splitlines()]
    assert "network connect to other computers" in shown
    assert "rewrite* change tasks, prompts, requests, replies, tool calls or results" in shown
    assert "secrets:ACME_KEY* read the environment variable ACME_KEY" in shown
    assert "A plugin is Python code that runs with your permissions." in shown
    assert not (here / "hookline.toml").exists()


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("yes", 0), ("n", 130), ("", 130)])
def test_at_a_terminal_the_person_is_asked(hookline, here, monkeypatch, answer, code):
    write(here / "plugins", "one")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert hookline("plugins", "enable", "one")[0] == code
    assert (here / "hookline.toml").exists() == (code == 0)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('hooks = ["gone.py:x"]', "there is no file"),
        ("[settings.key]\nrequired = true", "it is required: give it in [plugin_settings.bad]"),
        ('hooks = ["gone.py:x"', "is not valid TOML"),
    ],
)
def test_a_plugin_with_a_problem_is_not_enabled(hookline, here, more, says):
    write(here / "plugins", "bad", more)
    code, _, err = hookline("plugins", "enable", "bad", "--yes")
    assert (code, says in err) == (2, True)
    assert not (here / "hookline.toml").exists()
    code, _, err = hookline("plugins", "check", "bad")
    assert (code, says in err) == (1, True)


def test_the_list_shows_all_plugins_and_their_problems(hookline, here):
    code, out, _ = hookline("plugins", "list")
    assert (code, "hookline new plugin NAME" in out) == (0, True)
    write(here / "plugins", "one", 'hooks = ["a.py"]\ntools = ["a.py", "b.py:c"]\npermissions = ["network"]\n')
    write(here / "plugins", "two", "id = ")
    (here / "hookline.toml").write_text('plugins = ["one", "three"]')
    _, out, _ = hookline("plugins", "list")
    rows = [line.split() for line in out.splitlines()]
    assert rows[1] == ["one", "1.2", "on", "plugins/", "1", "hook,", "2", "tools", "network"]
    assert rows[2][:2] == ["two", "broken"]
    assert rows[3][:2] == ["three", "missing"]
    assert "two: " in out
    assert "is not valid TOML" in out
    assert "three: enabled in plugins, but not found" in out
    rows = {row["id"]: row for row in json.loads(hookline("plugins", "list", "--json")[1])}
    assert (rows["one"]["state"], rows["one"]["permissions"]) == ("on", ["network"])
    assert rows["two"]["problem"]


def test_a_broken_plugin_prevents_a_run_and_the_error_has_advice(hookline, here):
    (here / "turns.json").write_text('["done"]')
    write(here / "plugins", "bad", 'hooks = ["gone.py:x"]')
    (here / "hookline.toml").write_text('model = "scripted:turns.json"\nplugins = ["bad"]')
    code, _, err = hookline("run", "go")
    assert (code, "'hookline plugins disable bad', or run once without" in err) == (2, True)
    assert hookline("run", "go", "--plugin", "none")[0] == 0
    write(here / "plugins", "soft", 'hooks = ["gone.py:x"]\nrequired = false\n')
    (here / "hookline.toml").write_text('model = "scripted:turns.json"\nplugins = ["soft"]')
    code, out, err = hookline("run", "go")
    assert (code, out) == (0, "done\n")
    assert "note: plugin 'soft': " in err


def test_a_run_deactivates_its_plugins_at_the_end_and_reports_failures(hookline, here):
    (here / "turns.json").write_text('["done"]')
    place = write(here / "plugins", "one", 'activate = "main.py:on"\ndeactivate = "main.py:off"\n')
    (place / "main.py").write_text("def on(api): ...\ndef off(): raise OSError('stuck')\n")
    (here / "hookline.toml").write_text('model = "scripted:turns.json"\nplugins = ["one"]')
    code, out, err = hookline("run", "go")
    assert (code, out) == (0, "done\n")
    assert err.count("note: plugin 'one': deactivate failed: OSError: stuck") == 1


def test_a_run_that_cannot_start_deactivates_its_plugins_too(hookline, here):
    place = write(here / "plugins", "one", 'activate = "main.py:on"\ndeactivate = "main.py:off"\n')
    (place / "main.py").write_text("def on(api): ...\ndef off(): open('off', 'w').close()\n")
    (here / "people").mkdir()
    (here / "people" / "critic.toml").write_text('description = "d"')
    (here / "hookline.toml").write_text('model = "scripted:turns.json"\nplugins = ["one"]\npersonalities = "people"')
    (here / "turns.json").write_text('["done"]')
    assert hookline("run", "go", "--personality", "nobody")[0] == 2
    assert (here / "off").exists()


def test_a_plugin_cannot_hide_its_permissions_when_it_is_enabled(hookline, here):
    evil = 'description = "Nice.\\nIt needs no permissions: its hooks only observe and block."\n'
    evil += 'permissions = ["shell"]\n[settings."\\u001b[2J\\u001b[H"]\ndefault = "x"\n'
    place = write(here / "plugins", "one", evil)
    (place / "plugin.toml").write_text((place / "plugin.toml").read_text().replace('"1.2"', '"1.2\\nfrom a friend"'))
    code, out, _ = hookline("plugins", "enable", "one", "--yes")
    assert code == 0
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0].startswith("one 1.2\\nfrom a friend, from ")
    assert not any(line.startswith("It needs no permissions") for line in lines)
