"""``hookline diff`` as a program."""

import json
import os

import pytest

from ..explain import office


@pytest.fixture
def records(folder, monkeypatch):
    """Three runs: ``a`` and ``b`` do the same, ``c`` lacks a guard."""
    monkeypatch.chdir(folder)
    hooks = [hook for hook in office.HOOKS if hook is not office.no_deleting]
    for name, chosen in (("a", office.HOOKS), ("b", office.HOOKS), ("c", hooks)):
        office.agent(folder / name, hooks=chosen).run(office.TASK)
        (file,) = (folder / name).glob("*.moments")
        file.rename(folder / f"{name}.moments")
    return folder


def test_equal_runs_exit_with_0(hookline, records):
    done = hookline("diff", "a.moments", "b.moments")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Both runs did the same: 23 parts.\n")
    assert done.stdout.rstrip().endswith("⋯ 23 parts the same")


def test_a_difference_is_shown_side_by_side_and_exits_with_1(hookline, records):
    done = hookline("diff", "a.moments", "c.moments")
    assert (done.returncode, done.stderr) == (1, "")
    out = done.stdout
    assert out.startswith("The first difference: Step 1 of researcher, shell")
    assert out.count("◀ first difference") == 1
    row = next(line for line in out.splitlines() if "outcome: [-blocked-]" in line)
    assert "outcome: {+ok+}" in row
    assert "parts the same" in out


def test_runs_are_found_by_id_in_the_records(in_process, records):
    ids = [json.loads(in_process("explain", f"{name}.moments", "--json")[1])["id"] for name in "ac"]
    code, out, _ = in_process("diff", *ids, "--records", ".")
    assert code == 1
    assert all(id in out for id in ids)


def test_full_shows_what_is_the_same_too(in_process, records):
    code, out, _ = in_process("diff", "a.moments", "b.moments", "--full")
    assert code == 0
    assert "Step 5  send_mail  the same" in out


def test_json_has_the_pairs_that_differ(in_process, records):
    code, out, _ = in_process("diff", "a.moments", "c.moments", "--json")
    found = json.loads(out)
    assert (code, found["same"]) == (1, False)
    assert [pair["left"]["where"] for pair in found["pairs"]] == ["Step 1 of researcher", "Step 4"]


def test_a_page_is_written_for_its_owner_only(in_process, records):
    code, _, told = in_process("diff", "a.moments", "c.moments", "--html", "diff.html")
    assert code == 1
    assert told.startswith("written: diff.html (")
    assert os.stat(records / "diff.html").st_mode & 0o077 == 0


def test_a_run_that_is_not_recorded_is_reported(in_process, records):
    code, out, told = in_process("diff", "a.moments", "absent", "--records", ".")
    assert (code, out) == (2, "")
    assert "no recorded run begins with 'absent' in " in told
