"""NotesInjectorHook: notes in the system message."""

import pytest

from hookline import RegistrationError, call
from hookline.hooks import NotesInjectorHook
from hookline.stores import NotesFile
from hookline.testing import scripted_agent


@pytest.fixture
def notes(tmp_path):
    made = NotesFile(tmp_path / "notes.md")
    made.path.write_text("- old\n- new\n")
    return made


def systems(agent):
    return [[m.content for m in request.messages if m.role == "system"] for request in agent.model.requests]


def test_the_end_of_the_notes_follows_the_instructions(notes):
    agent = scripted_agent(["ok"], instructions="Be brief.", hooks=[NotesInjectorHook(notes)])
    agent.run("go")
    assert systems(agent) == [["Be brief.\n\nNotes, the newest last:\n- old\n- new"]]


def test_only_the_last_notes_that_fit_are_added(notes):
    agent = scripted_agent(["ok"], hooks=[NotesInjectorHook(notes, max_chars=5)])
    agent.run("go")
    assert systems(agent) == [["Notes, the newest last:\n- new"]]


def test_a_path_is_accepted_and_every_model_call_of_a_run_gets_the_same_text(notes):
    agent = scripted_agent(
        [call("add_note", text="newer"), "ok", "ok"], tools=[notes], hooks=[NotesInjectorHook(str(notes.path))]
    )
    agent.run("go")
    agent.run("again")
    texts = [found[0].splitlines()[1:] for found in systems(agent)]
    assert texts[0] == texts[1] == ["- old", "- new"]
    assert texts[2][-1].endswith(" newer")


def test_without_notes_the_request_is_unchanged(tmp_path):
    agent = scripted_agent(["ok"], hooks=[NotesInjectorHook(tmp_path / "none.md")])
    agent.run("go")
    assert systems(agent) == [[]]


def test_notes_that_cannot_be_read_are_reported_and_the_run_goes_on(tmp_path):
    agent = scripted_agent(["ok"], hooks=[NotesInjectorHook(tmp_path)])
    result = agent.run("go")
    assert result.status == "completed"
    assert [(error.type, error.source) for error in result.errors] == [("StoreError", "NotesInjectorHook")]


@pytest.mark.parametrize(
    ("given", "options"), [(None, {}), (3, {}), ("x", {"max_chars": 0}), ("x", {"max_chars": "9"})]
)
def test_invalid_arguments_are_rejected(given, options):
    with pytest.raises(RegistrationError):
        NotesInjectorHook(given, **options)
