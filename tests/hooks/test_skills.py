"""SkillsHook: accepted skills in the system message."""

import logging

import pytest

from hookline import RegistrationError, reply
from hookline.hooks import SkillsHook
from hookline.stores import Skill, SkillStore
from hookline.testing import scripted_agent


@pytest.fixture
def store(tmp_path):
    return SkillStore(tmp_path / "skills")


def add(store, name="tidy-notes", description="Tidy notes up.", accept=True):
    store.propose(Skill(name, description, "1. List them."))
    if accept:
        store.accept(name)


def system(agent):
    messages = agent.model.requests[-1].messages
    return messages[0].content if messages[0].role == "system" else ""


def agent_of(store, **options):
    hook = SkillsHook(store, **options)
    return scripted_agent([reply("ok")] * 5, instructions="Be good.", tools=[store], hooks=[hook])


def test_accepted_skills_are_listed_and_proposals_are_not(store):
    add(store)
    add(store, "other", accept=False)
    agent = agent_of(store)
    agent.run("x")
    lines = system(agent).splitlines()
    assert lines[0] == "Be good."
    assert lines[-1] == "- tidy-notes: Tidy notes up."
    assert "read_skill" in lines[-2]
    assert "other" not in system(agent)


def test_a_newly_accepted_skill_is_there_from_the_next_run_on(store):
    agent = agent_of(store)
    agent.run("x")
    assert system(agent) == "Be good."
    add(store)
    agent.run("x")
    assert "tidy-notes" in system(agent)


def test_the_list_is_bounded_and_counts_the_omitted_skills(store):
    for number in range(7):
        add(store, f"skill-{number}", "long " * 100)
    agent = agent_of(store, max_skills=5, max_chars=700)
    agent.run("x")
    assert system(agent).count("\n- ") == 3
    assert "(4 more: " in system(agent)
    assert len(system(agent)) < 900


def test_a_run_without_the_tool_is_unchanged_with_one_warning(store, caplog):
    add(store)
    agent = scripted_agent([reply("ok")] * 2, hooks=[SkillsHook(store.folder)])
    with caplog.at_level(logging.WARNING, "hookline"):
        agent.run("x")
        agent.run("x")
    assert system(agent) == ""
    assert len([record for record in caplog.records if "read_skill" in record.getMessage()]) == 1


def test_a_folder_that_cannot_be_read_does_not_stop_the_run(tmp_path):
    (tmp_path / "skills").write_text("a file")
    result = agent_of(SkillStore(tmp_path / "skills")).run("x")
    assert result.status == "completed"
    assert [error.source for error in result.errors] == ["SkillsHook"]


@pytest.mark.parametrize("options", [{"max_skills": 0}, {"max_chars": -1}, {"max_skills": True}, {"folder": 3}])
def test_invalid_arguments_are_rejected(options):
    with pytest.raises(RegistrationError):
        SkillsHook(**options)
