"""``hookline suggest`` as a program."""

import json

import pytest

from tests.suggest import shop


@pytest.fixture
def records(folder, monkeypatch):
    """A folder with a month of records, and attacks."""
    monkeypatch.chdir(folder)
    shop.month(folder / "records" / "a.moments")
    shop.attacked(folder / "attacks" / "b.moments")
    return folder


def test_the_rules_are_written_and_their_examples_hold(in_process, records):
    code, out, err = in_process("suggest", "records", "--attacks", "attacks", "--out", "rules.toml")
    assert code == 0
    assert out.startswith(f"{err.split('(')[1].split(',')[0]} would interrupt 0 of 90 later calls, 0 %, and stop ")
    assert "written: rules.toml" in err
    assert (records / "rules.toml").stat().st_mode & 0o777 == 0o600
    code, out, _ = in_process("rules", "test", "rules.toml")
    assert (code, "all right" in out) == (0, True)


def test_a_file_that_may_have_been_reviewed_is_not_written_again(in_process, records):
    (records / "rules.toml").write_text("# reviewed\n")
    code, _, err = in_process("suggest", "records", "--out", "rules.toml")
    assert (code, "rules.toml exists already" in err) == (2, True)
    assert (records / "rules.toml").read_text() == "# reviewed\n"


def test_without_attacks_it_says_that_what_is_stopped_is_not_known(in_process, records):
    code, out, err = in_process("suggest", "records")
    assert (code, "unknown" in out) == (0, True)
    assert "no later call is labelled as bad" in err


def test_json_is_the_whole_result(in_process, records):
    code, out, _ = in_process("suggest", "records", "--attacks", "attacks", "--json")
    found = json.loads(out)
    assert code == 0
    assert {"rules", "left_out", "judged", "allow_list", "curve", "tools"} <= found.keys()
    assert found["judged"]["interrupted"]["total"] == found["later"]["calls"]


def test_no_rule_is_a_result_of_its_own(in_process, folder, monkeypatch):
    monkeypatch.chdir(folder)
    shop.write(folder / "a.moments", [[(f"tool_{number}", {})] for number in range(20)])
    code, out, _ = in_process("suggest", "a.moments", "--out", "rules.toml")
    assert (code, out.splitlines()[0]) == (5, "No rule pays.")
    assert not (folder / "rules.toml").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--at-most", "few"), "at_most is a number of interruptions a day"),
        (("--then", "stop"), "--then: expected ask or block; got 'stop'"),
        (("--since", "1h"), "at least 10 runs"),
    ],
)
def test_a_wrong_option_is_an_error(in_process, records, option, message):
    code, _, err = in_process("suggest", "records", *option)
    assert (code, message in err) == (2, True)


def test_the_page_is_written(in_process, records):
    code, _, err = in_process("suggest", "records", "--html", "report.html")
    assert (code, "written: report.html" in err) == (0, True)
    assert (records / "report.html").stat().st_mode & 0o777 == 0o600
