"""``hookline import``: logs of other systems become records, and the losses are shown."""

import json
import stat

from hookline.records.reading import read_runs

TALK = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Write to ann@example.com"}]}


def test_an_import_writes_a_private_file_and_shows_what_it_read(hookline, folder):
    (folder / "log.jsonl").write_text(json.dumps(TALK) + "\n")
    done = hookline("import", "openai", "log.jsonl", "--out", "records")
    assert done.returncode == 0
    assert " ".join(done.stdout.split()[:-1]) == "read files 1 lines 1 runs 1 moments 4 labels 0 Written to"
    [file] = (folder / "records").iterdir()
    assert done.stdout.endswith(f"records/{file.name}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [run.info.task for run in read_runs([file])] == ["Hi"]


def test_sensitive_values_never_reach_the_record_unless_asked_for(hookline, folder):
    (folder / "log.jsonl").write_text(json.dumps(TALK) + "\n")
    assert hookline("import", "openai", "log.jsonl", "--out", "clean.moments").returncode == 0
    assert hookline("import", "openai", "log.jsonl", "--out", "all.moments", "--no-redact").returncode == 0
    assert b"ann@example.com" not in (folder / "clean.moments").read_bytes()
    assert b"ann@example.com" in (folder / "all.moments").read_bytes()
    [run] = read_runs([folder / "clean.moments"])
    reply = next(moment for moment in run.moments if moment.point == "after_llm")
    assert reply.notes.inexact == "redacted"


def test_lines_that_cannot_be_read_are_listed_and_the_exit_code_says_so(hookline, folder):
    done = hookline("import", "openai", "-", "--out", "a.moments", input=f"garbage\n{json.dumps(TALK)}\n{{")
    assert done.returncode == 5
    assert "the line is not JSON (line 1)" in done.stdout
    assert "the last line is incomplete (line 3)" in done.stdout
    assert len(list(read_runs([folder / "a.moments"]))) == 1


def test_the_report_as_json_has_all_counts(hookline, folder):
    done = hookline("import", "openai", "-", "--out", "a.moments", "--json", input=f"garbage\n{json.dumps(TALK)}\n")
    report = json.loads(done.stdout)
    assert (report["runs"], report["moments"], report["lines"]) == (1, 4, 2)
    assert report["skipped"] == [{"file": "-", "reason": "the line is not JSON", "count": 1, "first": 1}]


def test_if_nothing_can_be_read_no_file_is_written(hookline, folder):
    done = hookline("import", "claude-code", "-", "--out", "a.moments", input="garbage\n")
    assert done.returncode == 2
    assert "no run was found in 1 line" in done.stderr
    assert not list(folder.iterdir())


def test_an_existing_file_is_not_replaced(hookline, folder):
    (folder / "a.moments").write_text("mine")
    done = hookline("import", "openai", "-", "--out", "a.moments", input=json.dumps(TALK))
    assert done.returncode == 2
    assert "a.moments exists already" in done.stderr
    assert (folder / "a.moments").read_text() == "mine"


def test_a_mistake_in_the_name_of_a_source_or_file_is_explained(hookline, folder):
    assert "Did you mean 'openai'?" in hookline("import", "opnai", "-", "--out", "x").stderr
    assert "no such file or folder: 'missing'" in hookline("import", "openai", "missing", "--out", "x").stderr
    (folder / "empty").mkdir()
    done = hookline("import", "openai", "empty", "--out", "x")
    assert "folders are searched for files that end in .jsonl" in done.stderr
    assert done.returncode == 2


def test_without_a_path_the_import_goes_to_the_records_of_the_project(hookline, folder):
    (folder / "hookline.toml").write_text('records = "kept"\n')
    assert hookline("import", "openai", "-", input=json.dumps(TALK)).returncode == 0
    assert [run.info.task for run in read_runs([folder / "kept"])] == ["Hi"]
    listed = hookline("record", "ls", "--json")
    assert [run["task"] for run in json.loads(listed.stdout)] == ["Hi"]


def test_a_log_that_was_imported_before_adds_only_its_new_runs(hookline, folder):
    def bring(*names):
        (folder / "log.jsonl").write_text("".join(f"{json.dumps(talk(name))}\n" for name in names))
        done = hookline("import", "openai", "log.jsonl", "--out", "records")
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split()), sorted(run.info.task for run in read_runs(folder / "records"))

    assert bring("Ann", "Bob")[1] == ["Ann", "Bob"]
    shown, tasks = bring("Ann", "Bob")
    assert "runs 0 moments 0 labels 0 left out count runs that were imported before 2" in shown
    assert shown.endswith("There is nothing new to write.")
    assert tasks == ["Ann", "Bob"]
    shown, tasks = bring("Ann", "Bob", "Cem")
    assert "runs 1" in shown
    assert tasks == ["Ann", "Bob", "Cem"]


def test_a_conversation_without_times_is_not_listed_as_very_old(hookline, folder):
    (folder / "log.jsonl").write_text(json.dumps(TALK) + "\n")
    hookline("import", "openai", "log.jsonl", "--out", "records")
    assert hookline("record", "ls", "--records", "records").stdout.splitlines()[1].startswith("unknown ")


def talk(name):
    return {"messages": [{"role": "user", "content": name}, {"role": "assistant", "content": f"Hello {name}"}]}
