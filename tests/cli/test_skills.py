"""``hookline skills``: a person decides what agents have learned."""

import json
import sys

import pytest

from hookline.cli.app import run_app
from hookline.cli.errors import report_error
from hookline.stores import DatabaseSkillStore, Skill, SkillStore
from hookline.stores.skills import QueuedRun, SkillQueue

EVIL = "evil\x1b[2J\x1b]0;X\x07<!-- hidden -->"
FOUND = {
    "reusable": True,
    "name": "read-notes",
    "description": "Read all the notes.",
    "when": "Notes are asked for.",
    "steps": ["List the notes with list_files.", "Read each of them with read_file."],
}


@pytest.fixture
def store(folder):
    made = SkillStore(folder / "skills")
    made.propose(Skill("tidy-notes", "Tidy notes up.", f"# Tidy\n\n1. {EVIL}", source_run="run_1", source_task="Tidy"))
    made.propose(Skill("send-mail", "Send a mail.", "1. Write it."))
    return made


@pytest.fixture
def skills(capsys, monkeypatch, folder):
    monkeypatch.chdir(folder)

    def run(*args):
        try:
            code = run_app(["skills", *args])
        except Exception as error:
            code = report_error(error, args)
        return code, *capsys.readouterr()

    return run


def states(store):
    return {skill.name: skill.state for state in ("accepted", "proposed", "rejected") for skill in store.list(state)}


def test_proposals_are_listed_shown_accepted_and_rejected(skills, store):
    code, out, _ = skills("list")
    assert code == 0
    assert "tidy-notes" in out
    assert "2 proposals to review: hookline skills review" in out
    assert skills("accept", "tidy-notes", "--as", "tidy")[:2] == (0, "accepted: skills/tidy/SKILL.md\n")
    assert skills("reject", "send-mail")[:2] == (0, "rejected: send-mail\n")
    assert states(store) == {"tidy": "accepted", "send-mail": "rejected"}
    assert "1 rejected: --all shows them" in skills("list")[1]
    assert "rejected" in skills("list", "--all")[1].splitlines()[-1]
    told = json.loads(skills("list", "--json")[1])
    assert [skill["name"] for skill in told["skills"]] == ["tidy"]


def test_a_whole_proposal_is_shown_without_control_characters(skills, store, monkeypatch):
    _, out, _ = skills("show", "tidy-notes")
    assert r"evil\x1b[2J\x1b]0;X\x07<!-- hidden -->" in out
    assert "run_1" in out
    assert all(line.isprintable() for line in out.splitlines())
    assert skills("show", "tidy-notes", "--raw")[1] == store.raw(store.find("tidy-notes"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b" not in skills("show", "tidy-notes", "--raw")[1]


@pytest.mark.parametrize("command", ["show", "accept", "reject"])
@pytest.mark.parametrize("name", ["tidy-note", "../../etc/passwd", ""])
def test_an_unknown_name_is_reported(skills, store, command, name):
    code, _, err = skills(command, name)
    assert code != 0
    assert "error: there is no" in err or "is not a valid name" in err
    assert ("Did you mean 'tidy-notes'?" in err) == (name == "tidy-note")


def test_an_empty_folder_is_not_an_error(skills):
    assert skills("list")[:2] == (0, "No skills in skills.\n")
    assert skills("review")[:2] == (0, "No proposals to review.\n")
    assert skills("analyse")[:2] == (0, "No runs to analyse.\n")


def test_without_a_terminal_review_lists_the_commands_to_use(skills, store):
    code, out, _ = skills("review")
    assert code == 0
    assert "tidy-notes: Tidy notes up." in out
    assert "hookline skills accept NAME" in out
    assert set(states(store).values()) == {"proposed"}


def test_the_folder_is_that_of_the_setting_or_of_the_hook(skills, store, folder):
    store.folder.rename(folder / "mine")
    assert "No skills" in skills("list")[1]
    assert "tidy-notes" in skills("list", "--skills", "mine")[1]
    (folder / "hookline.toml").write_text('hooks = [{ use = "SkillEvolverHook", args = { folder = "mine" } }]')
    assert "tidy-notes" in skills("list")[1]


def test_skills_in_a_database_are_listed_shown_and_accepted(skills, folder):
    store = DatabaseSkillStore(folder / "skills.db")
    store.propose(Skill("tidy-notes", "Tidy notes up.", "1. List them."))
    store.queue().add(QueuedRun("run_1", "task", "text"))
    (folder / "hookline.toml").write_text('skills = "skills.db"')
    out = skills("list")[1]
    assert "1 proposal to review" in out
    assert "1 run to analyse" in out
    assert "tidy-notes in " in skills("show", "tidy-notes")[1]
    code, out, _ = skills("accept", "tidy-notes")
    assert (code, out.startswith("accepted: tidy-notes in ")) == (0, True)
    assert states(store) == {"tidy-notes": "accepted"}
    store.close()


@pytest.mark.slow
def test_a_person_decides_at_a_terminal(terminal, store, folder, env):
    editor = folder / "editor.py"
    editor.write_text(
        "import sys, pathlib\npath = pathlib.Path(sys.argv[1])\ntext = path.read_text()\n"
        "path.write_text(text.replace('name: tidy-notes', 'name: Wrong Name') if 'tidy-notes' in text else "
        "text.replace('Wrong Name', 'right-name'))\n"
    )
    env["EDITOR"] = f"python3 {editor}"
    at = terminal("skills", "review")
    at.wait_for("send-mail  (1 of 2)")
    at.wait_for("quit: ")
    at.send("perhaps\n")
    at.wait_for("Type accept")
    at.wait_for("quit: ")
    at.send("reject\n")
    at.wait_for("tidy-notes  (2 of 2)")
    at.wait_for("quit: ")
    at.send("edit\n")
    at.wait_for("type edit to continue")
    at.wait_for("quit: ")
    at.send("edit\n")
    at.wait_for("right-name  (2 of 2)")
    at.wait_for("quit: ")
    at.send("accept\n")
    at.wait_for("1 accepted, 1 rejected, 0 left")
    assert at.end() == 0
    assert "\x1b[2J" not in at.text
    assert states(store) == {"right-name": "accepted", "send-mail": "rejected"}


def test_a_run_that_was_left_is_looked_at_under_the_hooks_of_the_configuration(hookline, script, folder):
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("x")
    calls = [{"tool": "list_files"}, *({"tool": "read_file", "arguments": {"path": f"{n}.txt"}} for n in "ab"), "done"]
    done = hookline(
        "run", "Read my notes", "--model", script(*calls), "--skills", "skills", "--hooks", "SkillEvolverHook"
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    queue = SkillQueue(folder / "skills")
    assert len(queue.ids()) == 1
    (folder / "no.py").write_text(
        "from hookline import BEFORE_LLM, HookResult, guard\n@guard(BEFORE_LLM)\ndef no(ctx, request):\n"
        "    return HookResult.end('no', reason=ctx.agent_name)\n"
    )
    model = script(json.dumps(FOUND))
    refused = hookline("skills", "analyse", "--model", model, "--hooks", "no.py")
    assert refused.returncode == 1
    assert "the analysis was ended (skill-evolver)" in refused.stdout
    analysed = hookline("skills", "analyse", "--model", model)
    assert analysed.returncode == 0, analysed.stderr
    assert "proposed: read-notes" in analysed.stdout
    assert "hookline skills review" in analysed.stdout
    assert queue.ids() == []


def test_a_run_stays_queued_if_the_model_fails(skills, script, folder):
    queue = SkillQueue(folder / "skills")
    queue.add(QueuedRun("run_1", "Task", "text", ("look",), "o"))
    code, out, _ = skills(
        "analyse", "--model", script({"error": "OverloadedError", "message": "busy"}), "--runs", "none"
    )
    assert code == 1
    assert "the analysis failed" in out
    assert len(queue.ids()) == 1
