"""Building an agent or a roster from settings."""

import json

import pytest

from hookline import Agent, Session
from hookline.config.errors import ConfigError
from hookline.config.settings import Settings
from hookline.teams.build import build_answerer
from hookline.teams.roster import Roster


@pytest.fixture
def people(tmp_path):
    made = tmp_path / "personalities"
    made.mkdir()
    (made / "coder.toml").write_text('instructions = "coder"')
    return made


def settings(tmp_path, *turns, **more):
    (tmp_path / "turns.json").write_text(json.dumps(turns))
    return Settings(model=f"scripted:{tmp_path / 'turns.json'}", folder=str(tmp_path), **more)


def test_without_a_personality_folder_the_agent_is_built(tmp_path):
    assert type(build_answerer(settings(tmp_path, "hi"))) is Agent
    with pytest.raises(ConfigError, match="no folder is set for 'critic': set personalities"):
        build_answerer(settings(tmp_path, "hi", personality="critic"))


def test_with_a_personality_folder_a_roster_is_built(tmp_path, people):
    roster = build_answerer(settings(tmp_path, "hi", personalities=str(people), personality="coder"), home=tmp_path)
    assert isinstance(roster, Roster)
    assert [type(hook).__name__ for hook in roster["coder"].hooks] == ["PathGuard"]
    assert roster.run("x").ids.agent == "coder"


def test_the_server_and_key_of_the_settings_are_not_used_for_another_vendor(tmp_path, people, monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "k")
    (people / "same.toml").write_text('model = "openai:other"')
    (people / "vendor.toml").write_text('model = "anthropic:other"')
    base = Settings(
        model="openai:gpt", base_url="http://127.0.0.1:9/v1", folder=str(tmp_path), personalities=str(people)
    )
    roster = build_answerer(base, home=tmp_path)
    assert roster.problems == {}
    assert (roster["same"].model.name, roster["vendor"].model.name) == ("other", "other")
    assert "127.0.0.1:9" in str(roster["same"].model.__dict__)
    assert "127.0.0.1:9" not in str(roster["vendor"].model.__dict__)


def test_a_personality_whose_model_has_no_key_does_not_affect_the_others(tmp_path, people, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    (people / "vendor.toml").write_text('model = "anthropic:other"')
    roster = build_answerer(settings(tmp_path, "hi", personalities=str(people)), home=tmp_path)
    assert list(roster) == ["coder"]
    assert "ANTHROPIC_API_KEY" in next(iter(roster.problems.values()))


@pytest.mark.parametrize("name", ["write_file", "shell"])
def test_no_personality_can_change_personality_files_or_their_code(tmp_path, people, name):
    (tmp_path / "rules.py").write_text("from hookline import guard\n@guard('before_tool')\ndef r(ctx, p): ...\n")
    (people / "other.toml").write_text('guards = ["../rules.py"]')

    def calls(paths):
        for path in paths:
            made = {"path": path, "content": "x"} if name == "write_file" else {"command": f"echo x > {path}"}
            yield {"tool": name, "arguments": made}

    turns = list(calls(("personalities/new.toml", "rules.py", "notes.txt")))
    base = settings(
        tmp_path, turns, "done", turns, "done", personalities=str(people), write=True, shell=True, approvals="yes"
    )
    roster = build_answerer(base, home=tmp_path)
    result = roster.run("x", session=Session(personality_id="coder"))
    assert result.steps[0].outcomes == ("blocked", "blocked", "ok")
    (people / "other.toml").write_text('description = "without"')
    result = roster.run("x", session=Session(personality_id="coder"))
    assert result.steps[0].outcomes == ("blocked", "blocked", "ok")  # the code is still loaded
