"""SkillStore and SkillQueue."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import call, reply
from hookline._base.files import locked
from hookline.stores import DatabaseSkillStore, Skill, SkillStore, StoreError, skills
from hookline.stores.skills import (
    MAX_OUTCOMES,
    MAX_TRIES,
    AnalysisOutcome,
    QueuedRun,
    format_skill,
    front_matter,
    is_skill_name,
    parse_skill,
    skill_store_at,
)
from hookline.testing import scripted_agent

TIDY = Skill("tidy-notes", "Tidy notes up.", "1. List them.\n2. Sort them.", source_run="run_1", origin="abc")


@pytest.fixture
def store(tmp_path, request):
    made = skill_store_at(tmp_path / getattr(request, "param", "skills"))
    yield made
    if isinstance(made, DatabaseSkillStore):
        made.close()


everywhere = pytest.mark.parametrize("store", ["skills", "skills.db"], indirect=True)


def files(store):
    place = Path(store.place).parent
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


@everywhere
def test_a_proposal_is_not_a_skill_until_it_is_accepted(store):
    assert store.propose(TIDY)
    assert store.list() == []
    with pytest.raises(StoreError, match="there is no skill 'tidy-notes'"):
        store.tools()[0].fn("tidy-notes")
    accepted = store.accept("tidy-notes")
    assert (accepted.state, accepted.source_run) == ("accepted", "run_1")
    assert store.list() == [accepted]
    assert store.list("proposed") == []
    assert store.raw(accepted).startswith("---\nname: tidy-notes\n")
    assert store.tools()[0].fn("tidy-notes") == TIDY.text


@everywhere
def test_a_rejected_skill_is_not_proposed_again_and_can_still_be_accepted(store):
    store.propose(TIDY)
    store.reject("tidy-notes")
    assert [skill.name for skill in store.list("rejected")] == ["tidy-notes"]
    assert not store.propose(TIDY.replace(text="another text"))
    assert store.has_origin("abc")
    assert store.accept("tidy-notes").text == TIDY.text
    assert store.list("rejected") == []


@everywhere
@pytest.mark.parametrize("state", ["accepted", "proposed", "rejected"])
def test_no_skill_is_overwritten(store, state):
    store.propose(TIDY)
    if state != "proposed":
        getattr(store, {"accepted": "accept", "rejected": "reject"}[state])("tidy-notes")
    assert not store.propose(TIDY.replace(text="a new text"))
    store.propose(TIDY.replace(name="other"))
    with pytest.raises(StoreError, match="already"):
        store.accept("other", rename="tidy-notes")
    with pytest.raises(StoreError, match="already"):
        store.revise("other", format_skill(TIDY))
    assert store.find("tidy-notes").text == TIDY.text
    assert store.find("other").state == "proposed"


def test_accepting_a_proposal_keeps_a_skill_written_by_hand(store):
    store.propose(TIDY)
    place = store.folder / "tidy-notes"
    place.mkdir()
    (place / "SKILL.md").write_text("by hand")
    with pytest.raises(StoreError, match="--as NAME"):
        store.accept("tidy-notes")
    assert (place / "SKILL.md").read_text() == "by hand"
    assert store.accept("tidy-notes", rename="tidy-more").name == "tidy-more"


HOSTILE = [
    "../evil",
    "..",
    ".",
    "",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    ".proposed",
    "A",
    "a--b",
    "-a",
    "con",
    "a" * 65,
    "ü",
    "\udc80",
    "a\n",
]


@everywhere
@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_stays_in_the_folder(store, name):
    store.propose(TIDY)
    before = files(store)
    acts = [
        lambda: store.propose(TIDY.replace(name=name)),
        lambda: store.accept(name),
        lambda: store.reject(name),
        lambda: store.accept("tidy-notes", rename=name),
        lambda: store.find(name),
        lambda: store.get(name),
        lambda: store.path(name),
        lambda: store.tools()[0].fn(name),
    ]
    for act in acts:
        with pytest.raises((StoreError, ValueError)):
            act()
    assert files(store) == before


@given(st.text(max_size=70))
def test_a_valid_name_is_a_single_path_component(text):
    if is_skill_name(text):
        assert os.path.basename(text) == text == text.lower().strip(".")
        assert text.isascii()


def test_symbolic_links_are_not_followed(store, tmp_path):
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (secret / "SKILL.md").write_text("secret")
    store.folder.mkdir()
    (store.folder / "linked").symlink_to(secret)
    (store.folder / "file").mkdir()
    (store.folder / "file" / "SKILL.md").symlink_to(secret / "SKILL.md")
    assert store.list() == []
    assert len(store.problems()) == 2
    with pytest.raises(StoreError):
        store.get("file")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_a_skill_that_others_could_have_written_is_not_read(store, parts):
    store.propose(TIDY)
    store.accept(TIDY.name)
    path = store.path(TIDY.name)
    (path, *path.parents)[parts].chmod(0o777)
    assert list(store.list()) == []
    (problem,) = store.problems()
    assert "every user may write to it" in problem


def test_an_unreadable_skill_is_reported_and_hides_no_other(store):
    store.propose(TIDY)
    store.accept("tidy-notes")
    for name, text in (("Shouting", "x"), ("empty", ""), ("large", "x" * 1_000_001)):
        (store.folder / name).mkdir()
        (store.folder / name / "SKILL.md").write_text(text)
    (store.folder / "bare").mkdir()
    (store.folder / "notes.txt").write_text("mine")
    assert [skill.name for skill in store.list()] == ["tidy-notes"]
    told = "\n".join(store.problems())
    assert all(name in told for name in ("Shouting", "empty", "large", "bare"))
    assert "notes.txt" not in told


def test_a_skill_written_by_another_program_is_read(store):
    (store.folder / "pdf").mkdir(parents=True)
    head = "name: whatever\ndescription: >\n  Work with\n  PDF files.\nlicense: 'it''s free'\nallowed-tools:\n  - bash"
    raw = f"\ufeff---\n{head}\n---\n# PDF\n\nDo it.\n".replace("\n", "\r\n")
    (store.folder / "pdf" / "SKILL.md").write_bytes(raw.encode())
    (skill,) = store.list()
    assert (skill.name, skill.description, skill.text) == ("pdf", "Work with PDF files.", "# PDF\n\nDo it.")
    assert front_matter(raw)[0]["license"] == "it's free"
    (store.folder / "pdf" / "SKILL.md").write_text("# Title\n\nJust a text.\n")
    assert store.list()[0].description == "Just a text."


TEXT = st.text(min_size=1, max_size=200).filter(lambda text: text.strip())


@given(TEXT, TEXT, TEXT, st.lists(TEXT, max_size=3))
def test_a_skill_survives_writing_and_reading(description, text, task, tools):
    line = " ".join(description.split())
    skill = Skill("x", line, text.strip(), "proposed", "2026-01-01", "run:1", " ".join(task.split()), tuple(tools), "0")
    found = parse_skill(format_skill(skill), "x", "proposed")
    assert found.description == line
    assert found.source_task == skill.source_task
    assert found.source_tools == tuple(" ".join(tool.split()) for tool in tools)
    assert found.text.split() == skill.text.split()


@given(st.text())
def test_any_text_can_be_parsed(raw):
    fields, rest = front_matter(f"---\n{raw}")
    assert fields or rest == f"---\n{raw}" or "---" in raw


@everywhere
def test_a_run_reads_a_skill_with_the_tool(store):
    store.propose(TIDY)
    store.accept("tidy-notes")
    turns = [[call("read_skill", name="tidy-notes"), call("read_skill", name="tidy-note")], reply("ok")]
    result = scripted_agent(turns, tools=[store]).run("x")
    good, bad = (message.content for message in result.messages if message.role == "tool")
    assert good == TIDY.text
    assert "Did you mean 'tidy-notes'?" in bad


@everywhere
def test_a_long_skill_is_cut_for_a_model_with_a_note(store):
    store.propose(TIDY.replace(text="x" * 20_000))
    store.accept("tidy-notes")
    assert store.tools()[0].fn("tidy-notes").endswith("[4000 characters left out]")


@pytest.mark.parametrize(
    "change", [{"description": ""}, {"description": "x" * 2000}, {"text": " "}, {"text": "x" * 60_000}]
)
def test_a_skill_with_an_empty_or_too_long_text_is_refused(store, change):
    with pytest.raises(StoreError, match="tidy-notes needs"):
        store.propose(TIDY.replace(**change))


@everywhere
def test_an_invalid_revision_changes_nothing(store):
    store.propose(TIDY)
    for raw in ("", "---\nname: Not A Name\n---\ntext", "---\nname: ok\n---\n"):
        with pytest.raises(StoreError):
            store.revise("tidy-notes", raw)
    assert store.get("tidy-notes", "proposed").text == TIDY.text
    assert store.revise("tidy-notes", "---\nname: new-name\ndescription: d\n---\ntext").name == "new-name"
    assert [skill.name for skill in store.list("proposed")] == ["new-name"]


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="that is a file"):
        SkillStore(tmp_path / "file").propose(TIDY)
    with pytest.raises(StoreError, match="that is a file"):
        SkillStore(tmp_path / "file").list()
    with pytest.raises(TypeError, match="takes a folder"):
        SkillStore(3)


def test_the_folder_is_locked_during_a_change(store, monkeypatch):
    store.propose(TIDY)
    monkeypatch.setattr(skills, "LOCK_SECONDS", 0.01)
    with (store.folder / ".lock").open("r+") as file, locked(file.fileno(), 5):
        for act in (lambda: store.accept("tidy-notes"), lambda: store.propose(TIDY.replace(name="b"))):
            with pytest.raises(StoreError, match="held the lock"):
                act()
    assert store.accept("tidy-notes").state == "accepted"


PROPOSE = """
import sys
from hookline.stores import Skill
from hookline.stores.skills import skill_store_at
store = skill_store_at(sys.argv[1])
sys.stdin.readline()
print([store.propose(Skill("tidy-notes", "Tidy notes up.", f"from {sys.argv[2]}")) for _ in range(4)].count(True))
"""


@everywhere
def test_only_one_of_several_processes_proposes_a_name(store):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen([sys.executable, "-c", PROPOSE, store.place, str(number)], **pipes) for number in "12"]
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()
    made = [int(program.communicate()[0]) for program in programs]
    assert sorted(made) == [0, 1]
    assert store.get("tidy-notes", "proposed").text == f"from {made.index(1) + 1}"


# The queue.


@pytest.fixture
def queue(store):
    return store.queue(3)


def waiting(number=1, **fields):
    return QueuedRun(f"run/{number}", "task", "text", ("look",), f"o{number}", **fields)


@everywhere
def test_a_full_queue_drops_and_reports_the_oldest_runs(queue):
    added = [queue.add(waiting(number)) for number in range(5)]
    assert [len(gone) for _, gone in added] == [0, 0, 0, 1, 1]
    assert [queue.get(ident).run_id for ident in queue.ids()] == ["run/2", "run/3", "run/4"]
    assert queue.get(added[0][0]) is None


@everywhere
def test_a_run_is_claimed_by_one_process_at_a_time(store, queue):
    ident, _ = queue.add(waiting())
    with queue.claim(ident) as first, store.queue().claim(ident) as second:
        assert first == waiting()
        assert second is None
    with queue.claim(ident) as again:
        queue.finish(ident, again, AnalysisOutcome("nothing"))
    with queue.claim(ident) as gone:
        assert gone is None
    assert not [name for name in files(store) if name.endswith(".lock")]


@everywhere
def test_a_failed_analysis_is_retried_a_limited_number_of_times(queue):
    ident, _ = queue.add(waiting())
    for _ in range(MAX_TRIES):
        assert len(queue.ids()) == 1
        with queue.claim(ident) as run:
            queue.finish(ident, run, AnalysisOutcome("failed", "no model"))
    assert queue.ids() == []
    assert [outcome.kind for outcome in queue.outcomes()] == ["failed"] * MAX_TRIES
    assert not queue.has_origin("o1")


@everywhere
def test_an_exception_inside_a_claim_releases_the_run(queue):
    ident, _ = queue.add(waiting())
    with pytest.raises(TimeoutError), queue.claim(ident):
        raise TimeoutError("of the body")
    with queue.claim(ident) as run:
        assert run is not None


def test_a_damaged_file_is_renamed(queue):
    ident, _ = queue.add(waiting())
    (queue.folder / f"{ident}.json").write_bytes(b"\xff{")
    assert not queue.has_origin("o1")
    with queue.claim(ident) as run:
        assert run is None
    assert queue.ids() == []
    assert (queue.folder / f"{ident}.damaged").exists()


def test_a_limited_number_of_outcomes_is_remembered(queue):
    queue.folder.mkdir(parents=True)
    (queue.folder / "outcomes.jsonl").write_bytes(b'{"kind":"nothing"}\n' * (MAX_OUTCOMES * 2) + b"rubbish\n")
    ident, _ = queue.add(waiting())
    assert queue.has_origin("o1")
    with queue.claim(ident) as run:
        queue.finish(ident, run, AnalysisOutcome("unusable", "why"))
    assert queue.has_origin("o1")
    assert len(queue.outcomes()) <= MAX_OUTCOMES
    assert queue.outcomes()[-1].note == "why"


# In a database.


CLAIM = """
import os, signal, sys
from hookline.stores.skills import skill_store_at
queue = skill_store_at(sys.argv[1]).queue()
with queue.claim(queue.ids()[0]) as run:
    assert run is not None
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.sqlite
@everywhere
def test_a_run_that_a_killed_process_had_claimed_can_be_claimed_again(store, queue):
    ident, _ = queue.add(waiting())
    done = subprocess.run([sys.executable, "-c", CLAIM, store.place], check=False)
    assert done.returncode == -signal.SIGKILL
    with queue.claim(ident) as run:
        assert run == waiting()


@pytest.fixture
def database(tmp_path):
    made = DatabaseSkillStore(tmp_path / "skills.db")
    yield made
    made.close()


def test_a_failed_change_of_a_database_is_undone(database, monkeypatch):
    database.propose(TIDY)
    monkeypatch.setattr(database, "_remove", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        database.accept("tidy-notes")
    assert (database.list(), [skill.name for skill in database.list("proposed")]) == ([], ["tidy-notes"])


def test_an_unreadable_row_is_reported_and_hides_no_other(database):
    database.propose(TIDY)
    with database.db.transaction(write=True) as db:
        db.execute("INSERT INTO skills VALUES ('empty', 'proposed', ' ')")
    assert [skill.name for skill in database.list("proposed")] == ["tidy-notes"]
    (problem,) = database.problems()
    assert "the skill empty needs a text" in problem


def test_skills_in_a_database_have_no_files(database):
    database.propose(TIDY)
    with pytest.raises(StoreError, match="has no file: it is in"):
        database.path("tidy-notes")
    assert database.location("tidy-notes") == f"tidy-notes in {database.place}"
    with pytest.raises(StoreError, match="there is no skill 'x'"):
        database.find("x")


def test_an_entry_that_cannot_be_read_leaves_the_queue(database):
    queue = database.queue()
    ident, _ = queue.add(waiting())
    with database.db.transaction(write=True) as db:
        db.execute("UPDATE queue SET run = ?", (b"\xff{",))
    with queue.claim(ident) as run:
        assert run is None
    assert queue.ids() == []


def test_a_limited_number_of_outcomes_is_kept_in_a_database(database, monkeypatch):
    monkeypatch.setattr(skills, "MAX_OUTCOMES", 3)
    queue = database.queue()
    for number in range(5):
        ident, _ = queue.add(waiting(number))
        with queue.claim(ident) as run:
            queue.finish(ident, run, AnalysisOutcome("nothing"))
    assert [outcome.origin for outcome in queue.outcomes()] == ["o2", "o3", "o4"]
    assert queue.has_origin("o4")
