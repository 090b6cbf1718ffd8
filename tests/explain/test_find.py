"""Finding recorded runs."""

import json

import pytest

from hookline.explain import find_run
from hookline.records import RecordError

HEADER = ["hookline", {"format": 1}]


def record(file, *runs, nested=()):
    """Write a record of runs, each an id and the time of its start."""
    lines = [HEADER]
    for id, time in runs:
        lines.append(["run", 0, {"ids": {"run_id": id}, "time": time}])
        lines += [["run", n, {"ids": {"run_id": each}, "outer": 0}] for n, each in enumerate(nested, 1)]
        lines.append(["end", 0, {"status": "completed"}])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path):
    record(tmp_path / "a.moments", ("run_aa11", 100.0), ("run_aa22", 300.0), nested=["run_cc55"])
    record(tmp_path / "live" / "b.moments", ("run_bb33", 200.0))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("run_aa11", "run_aa11"),
        ("run_aa1", "run_aa11"),
        ("bb", "run_bb33"),
        ("cc5", "run_cc55"),
        ("last", "run_aa22"),
    ],
)
def test_a_run_is_found_by_its_id_or_its_beginning(folder, name, found):
    assert find_run(name, [folder]).run.id == found


def test_the_last_run_of_a_file_is_meant_by_its_name(folder):
    run, notes = find_run(str(folder / "a.moments"))
    assert run.id == "run_aa22"
    assert notes == [f"{folder / 'a.moments'} contains 2 runs; this is the last one (choose another by its id)"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aa", "2 recorded runs begin with 'aa': run_aa11, run_aa22"),
        ("zz", "no recorded run begins with 'zz'"),
        ("", "no recorded run begins with ''"),
        ("../secret", "no recorded run begins with '../secret'"),
    ],
)
def test_a_name_that_is_not_one_run_is_refused(folder, name, message):
    with pytest.raises(RecordError, match=message):
        find_run(name, [folder])


def test_a_file_without_runs_is_refused_with_the_reason(tmp_path):
    file = tmp_path / "a.moments"
    file.write_text('["hookline",{"format":99}]\n["run",0,{}]\n')
    with pytest.raises(RecordError, match="contains no recorded run: .*use a newer version of Hookline"):
        find_run(str(file))


def test_a_record_that_moves_while_it_is_looked_up_is_found_in_its_new_place(folder, monkeypatch):
    from hookline.explain import find

    real = find._read

    def move_first(file, id):
        if file.parent.name == "live":
            file.rename(folder / "moved.moments")
        return real(file, id)

    monkeypatch.setattr(find, "_read", move_first)
    assert find_run("bb33", [folder]).run.id == "run_bb33"
