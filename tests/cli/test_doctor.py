"""``hookline doctor`` proves the sandbox by trying to get out of it."""

import pytest

from hookline import ScriptedModel
from hookline._toolbox import sandbox
from hookline._toolbox.sandbox import LEVELS, level_state


@pytest.fixture(autouse=True)
def fresh_checks():
    yield
    level_state.cache_clear()
    sandbox._bubblewrap_program.cache_clear()


@pytest.fixture
def hookline(in_process):
    return in_process


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def all_levels():
    for level in LEVELS:
        if problem := level_state(level).problem:
            pytest.skip(f"{level}: {problem}")


def attempts(out):
    """Return the lines of the table, as words, by the attempt."""
    _, _, table = out.partition("Trying to get out of the shell's sandbox\n")
    return {line[:36].strip(): line[36:].split() for line in table.splitlines() if line}


def test_doctor_tries_to_get_out_of_every_level(hookline, here, all_levels):
    code, out, _ = hookline("doctor", "--no-model")
    assert code == 0
    table = attempts(out)
    assert table.pop("attempt") == ["bubblewrap", "landlock"]
    assert table.pop("write a file in its own folder") == ["works", "works"]
    assert {"write a file outside", "read a secret outside", "connect by TCP"} <= table.keys()
    assert set(map(tuple, table.values())) == {("stopped", "stopped")}


@pytest.mark.slow
def test_doctor_fails_if_something_gets_out(hookline, here, all_levels, monkeypatch):
    (here / "launcher.py").write_text("import os, sys\nos.execv(sys.argv[2], sys.argv[2:])\n")
    monkeypatch.setattr(sandbox, "_LAUNCHER", str(here / "launcher.py"))
    code, out, _ = hookline("doctor", "--no-model")
    assert code == 2
    assert attempts(out)["read a secret outside"] == ["stopped", "NOT", "STOPPED"]
    assert "✗ landlock: read a secret outside: " in out


def test_doctor_says_what_to_install(hookline, here, monkeypatch):
    level_state.cache_clear()
    sandbox._bubblewrap_program.cache_clear()
    monkeypatch.setenv("PATH", str(here))
    code, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    assert code == 0
    (line,) = [line for line in out.splitlines() if "sandbox bubblewrap" in line]
    assert "the program bwrap is missing: install it" in line
    assert not line.startswith("ok")


def test_doctor_checks_the_settings_of_channels(hookline, here, monkeypatch):
    (here / "hookline.toml").write_text(
        """channels = [
  "console",
  { use = "slack", name = "work", args = { token = "env:SLACK_TOKEN", app_token = "xapp-1" } },
  { use = "slack", name = "half", args = { token = "xoxb-1" } },
  { use = "own.py:Never", name = "own" },
]
"""
    )
    (here / "own.py").write_text("open('ran', 'w')")
    monkeypatch.setenv("SLACK_TOKEN", "xoxb-12345")
    hookline("trust", "--yes")
    _, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    found = {line.split()[2]: line for line in out.splitlines() if " channel " in line}
    assert found["work"].split()[0] == found["console"].split()[0] == "ok"
    assert found["half"].split()[0] == "no"
    assert "set either app_token" in found["half"]
    assert "own" not in found
    assert not (here / "ran").exists()
    monkeypatch.delenv("SLACK_TOKEN")
    _, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    assert "SLACK_TOKEN" in out


def test_doctor_says_whether_stored_data_is_encrypted_and_what_stays(hookline, here, monkeypatch):
    _, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    assert "off: journals and tapes are stored as they are; hookline db key makes a key" in " ".join(out.split())
    assert "a server deletes texts of runs after 30 days" in " ".join(out.split())
    _, first, _ = hookline("db", "key")
    _, second, _ = hookline("db", "key")
    (here / "keys").write_text(first + second)
    monkeypatch.setenv("HOOKLINE_DATA_KEY_FILE", str(here / "keys"))
    _, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    assert "journals and tapes are written with the key" in " ".join(out.split())
    assert ", and reads with " in " ".join(out.split())
    monkeypatch.setenv("HOOKLINE_DATA_KEYS", "no key")
    _, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    assert "a key for stored data is not valid" in " ".join(out.split())


def test_doctor_says_what_the_embedded_model_is_for(hookline, here, monkeypatch):
    monkeypatch.setattr("hookline.providers.local.weights.is_fetched", lambda: True)
    monkeypatch.setattr("hookline.config.factory.build_model", lambda settings: ScriptedModel(["Yes."]))
    code, out, _ = hookline("doctor")
    assert code == 0
    assert "answered 'Yes.'" in out
    assert "It picks tools; it is no chat partner. Larger models: hookline models" in out
