"""Two runs side by side."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import call
from hookline.explain import compare, diff_html, explain
from hookline.explain.comparison import RunPart, _pairs, run_parts, summary

from . import office
from .test_page import Elements


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of the same script, and one without a guard and with one step more."""
    folder = tmp_path_factory.mktemp("records")
    hooks = [hook for hook in office.HOOKS if hook is not office.no_deleting]
    script = office.turns()
    script[3:4] = [call("shell", command="mv reports/old trash/"), call("shell", command="ls trash")]
    recorded = [
        office.recorded(folder / "a"),
        office.recorded(folder / "b"),
        office.recorded(folder / "c", hooks=hooks, script=script),
    ]
    return [explain(run) for run in recorded]


def test_two_runs_that_did_the_same_have_no_difference(runs):
    found = compare(runs[0], runs[1])
    assert found.same
    assert found.first == -1
    assert summary(found) == "Both runs did the same: 23 parts."


def test_the_first_difference_is_found(runs):
    found = compare(runs[0], runs[2])
    first = found.pairs[found.first]
    assert all(pair.same for pair in found.pairs[: found.first])
    assert (first.left.where, first.left.title) == ("Step 1 of researcher", "shell")
    assert [difference.name for difference in first.differences] == ["hooks at before_tool", "outcome", "result"]
    assert {d.name: d.parts for d in first.differences}["outcome"] == [("-", "blocked"), ("+", "ok")]
    assert summary(found).startswith("The first difference: Step 1 of researcher, shell (hooks at before_tool,")


def test_an_added_step_does_not_make_the_later_steps_differ(runs):
    pairs = compare(runs[0], runs[2]).pairs
    added = [(pair.right.where, pair.right.title) for pair in pairs if pair.left is None]
    assert added == [("Step 5", "model"), ("Step 5", "shell")]
    mail = next(pair for pair in pairs if pair.left is not None and pair.left.title == "send_mail")
    assert (mail.left.where, mail.right.where, mail.same) == ("Step 5", "Step 6", True)


def test_calls_are_compared_by_argument_text(runs):
    pairs = compare(runs[0], runs[2]).pairs
    moved = next(pair for pair in pairs if pair.left is not None and pair.left.where == "Step 4" and not pair.same)
    parts = {d.name: d.parts for d in moved.differences}["arguments"]
    assert ("-", "rm -rf") in parts
    assert ("+", " trash/") in parts


parts = st.builds(
    RunPart,
    where=st.just(""),
    kind=st.just("call"),
    title=st.sampled_from("ab"),
    texts=st.dictionaries(st.just("result"), st.sampled_from("xyz"), max_size=1),
)


@given(st.lists(parts, max_size=12), st.lists(parts, max_size=12))
def test_every_part_of_both_runs_is_shown_once_and_in_order(left, right):
    pairs = list(_pairs(left, right))
    assert [pair.left for pair in pairs if pair.left is not None] == left
    assert [pair.right for pair in pairs if pair.right is not None] == right
    for pair in pairs:
        if pair.left is not None and pair.right is not None:
            assert pair.left.label == pair.right.label
            assert pair.same == (pair.left.content == pair.right.content)


@given(st.lists(parts, max_size=10))
def test_a_run_is_the_same_as_itself(one):
    assert all(pair.same for pair in _pairs(one, one))


def test_long_runs_that_differ_everywhere_are_compared_by_position():
    left = [RunPart("", "call", "t", texts={"result": f"{n}"}) for n in range(2500)]
    right = [RunPart("", "call", "t", texts={"result": f"x{n}"}) for n in range(2500)]
    pairs = list(_pairs(left, right))
    assert len(pairs) == 2500
    assert not any(pair.same for pair in pairs)


def test_ids_and_times_are_not_compared(runs):
    text = msgspec.json.encode(list(run_parts(runs[0]))).decode()
    assert runs[0].id not in text
    assert "call_0_0" not in text


def test_the_page_has_a_policy_and_no_other_resource(runs):
    elements = Elements(diff_html(compare(runs[0], runs[2])))
    policy = next(a["content"] for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert "unsafe" not in policy
    assert not any({"src", "href", "style"} & attributes.keys() for _, attributes in elements.found)
