"""The report: counts in three parts, merging, and the conditions of --fail-if."""

import pytest

from hookline.backtest import BacktestError, Cell, Confusion, Count, Example, Guess, HookFailure, Report
from hookline.backtest.report import EXAMPLES, KINDS
from hookline.records import Skipped
from tests.cases import each_case


def made(**fields):
    cell = Cell("rule", "before_tool", "shell", "newly_blocked", Count(2, 3, 1), (Example("r1", 4, "before_tool"),))
    usual = {
        "rules": ("rule",),
        "runs": 10,
        "moments": 100,
        "judged": 20,
        "different_runs": 2,
        "certainty": Count(80, 15, 5),
        "cells": (cell, Cell("", "before_tool", "shell", "same", Count(9, 0, 0))),
        "failures": (HookFailure("rule", "raised", "ValueError: x", 2),),
        "guesses": (Guess("rule", "ctx.deps", 1),),
        "skipped": (Skipped("a.moments", "the line is not JSON", 3, 7),),
        "labels": Confusion(Count(3), Count(1), Count(1), Count(5)),
    }
    return Report(**{**usual, **fields})


def test_a_report_is_json_and_back():
    assert Report.from_json(made().to_json()) == made()


def test_a_report_prints_as_its_answer_and_its_examples():
    assert str(made()).splitlines() == [
        "2 of 10 runs would differ: 6 newly blocked.",
        "2 of 6 differences are certain; 3 came later in a run that would have differed before; "
        "1 is a guess, because rule read ctx.deps.",
        "newly blocked: 6 (rule at before_tool shell)",
        "1 hook failure, 3 skipped lines: see failures and skipped",
    ]


@pytest.mark.parametrize(
    ("guesses", "why"),
    [
        ((), "a part of the record cannot be read"),
        ((Guess("a", "ctx.deps"), Guess("b", "ctx.memory")), "a read ctx.deps and b read ctx.memory"),
        ((Guess("a", "x"), Guess("a", "y"), Guess("b", "x"), Guess("b", "y")), "a read x and a read y and 2 more"),
    ],
)
def test_a_report_says_what_a_guess_comes_from(guesses, why):
    assert str(made(guesses=guesses)).splitlines()[1].endswith(f"1 is a guess, because {why}.")


def test_totals_keep_the_three_parts_apart():
    report = made()
    assert report.total("newly_blocked") == Count(2, 3, 1)
    assert report.total("newly_blocked", tool="other") == Count()
    assert report.differences == Count(2, 3, 1)
    assert report.exact_share == 0.8
    assert (report.labels.precision, report.labels.recall) == (0.75, 0.75)


def test_merging_adds_everything_up():
    merged = Report.merge([made(), made(), made(cells=())])
    assert (merged.runs, merged.moments, merged.judged, merged.different_runs) == (30, 300, 60, 6)
    assert merged.certainty == Count(240, 45, 15)
    assert merged.total("newly_blocked") == Count(4, 6, 2)
    assert merged.failures[0].count == 6
    assert merged.guesses[0].count == 3
    assert (merged.skipped[0].count, merged.skipped[0].first) == (9, 7)
    assert merged.labels.bad_stopped.total == 9


def test_merging_does_not_depend_on_how_the_parts_are_grouped():
    parts = [made(runs=number, skipped=(Skipped(f"{number}", "why"),)) for number in range(5)]
    assert Report.merge(parts) == Report.merge([Report.merge(parts[:2]), Report.merge(parts[2:])])


def test_merging_keeps_the_first_examples():
    def with_examples(name):
        examples = tuple(Example(f"{name}{n}", n, "before_tool") for n in range(3))
        return made(cells=(Cell("rule", "before_tool", "shell", "newly_blocked", Count(3), examples),))

    merged = Report.merge([with_examples("a"), with_examples("b")])
    assert [example.run_id for example in merged.cells[0].examples] == ["a0", "a1", "a2", "b0", "b1"]
    assert len(merged.cells[0].examples) == EXAMPLES


def test_reports_about_different_rules_are_not_merged():
    with pytest.raises(ValueError, match="different rules"):
        Report.merge([made(), made(rules=("other",))])


def test_the_account_of_very_many_files_is_cut():
    skipped = tuple(Skipped(f"{number}.moments", "the line is not JSON") for number in range(3000))
    merged = Report.merge([made(skipped=skipped)])
    assert len(merged.skipped) == 1001
    assert merged.skipped_lines == 3000


@pytest.mark.parametrize(
    ("expression", "hit"),
    [
        ("newly_blocked > 0", True),
        ("newly_blocked > 6", False),
        ("newly_blocked.exact >= 2", True),
        ("newly_blocked.exact > 2", False),
        ("newly_blocked.conditional == 3 and newly_blocked.guess == 1", True),
        ("no_longer_blocked > 0 or raised > 1", True),
        ("no_longer_blocked > 0 and raised > 1", False),
        ("not (skipped == 0)", True),
        ("precision < 0.8", True),
        ("recall < 0.7", False),
        ("exact_share < 0.9", True),
        ("different_runs != 2", False),
        ("guessed > 0", True),
        ("differences > judged", False),
        ("runs < -1", False),
    ],
)
def test_a_condition_is_true_or_not(expression, hit):
    reason = made().fail_if(expression)
    assert (reason is not None) == hit
    assert reason is None or reason.startswith(f"{expression}: ")


def test_the_reason_names_the_values():
    assert made().fail_if("newly_blocked > 0 and precision < 1") == (
        "newly_blocked > 0 and precision < 1: newly_blocked is 6, precision is 0.75"
    )


@pytest.mark.parametrize("expression", ["precision < 0.5", "recall >= 2", "precision > 0.9"])
def test_an_unknown_share_does_not_pass_a_check(expression):
    assert "no labels" in made(labels=Confusion()).fail_if(expression)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("newly_bloked > 0", "Did you mean 'newly_blocked'"),
        ("newly_blocked.exakt > 0", "Did you mean 'exact'"),
        ("precision.exact > 0", "has no parts"),
        ("newly_blocked", "compare a name with a number"),
        ("newly_blocked > 'a'", "neither a name nor a number"),
        ("newly_blocked > True", "neither a name nor a number"),
        ("__import__('os').system('x') > 0", "neither a name nor a number"),
        ("1 < newly_blocked < 3", "compare a name"),
        ("newly_blocked >", "not an expression"),
        ("", "not an expression"),
        ("a" * 100_000 + ".b" * 10_000, "Write for example"),
    ],
)
def test_an_invalid_condition_is_an_error(expression, message):
    with pytest.raises(BacktestError, match=message):
        made().fail_if(expression)


@each_case("kind", KINDS)
def test_every_kind_can_be_used_in_a_condition(kind):
    assert made().fail_if(f"{kind} < 0") is None
