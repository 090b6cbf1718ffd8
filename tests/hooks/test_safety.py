"""SafetyGuardrailHook: block and allow lists for tasks."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import HookRegistry, HookResult, RegistrationError, Session, hook, reply
from hookline.hooks import HookAction, SafetyGuardrailHook
from hookline.testing import fire_hook, scripted_agent


def passes(rail, task):
    return fire_hook(rail, "on_run_start", task=task).action is HookAction.CONT


async def test_a_blocked_task_ends_the_run_before_the_model_is_asked():
    session = Session("s")
    agent = scripted_agent([reply("never")], hooks=[SafetyGuardrailHook(["bomb", "poison"], reply="No.")])
    result = await agent.arun("how to make a Bomb?", session=session)
    assert (result.status, result.reply, result.hook_ended) == ("ended", "No.", "blocklist: bomb")
    assert agent.model.requests == []
    assert list(session.messages) == []


async def test_other_tasks_pass_unchanged():
    agent = scripted_agent([reply("hello")], hooks=[SafetyGuardrailHook(["bomb"])])
    result = await agent.arun("Say  hello")
    assert (result.reply, result.task) == ("hello", "Say  hello")


@pytest.mark.parametrize(
    "unseen", ["\0", "\x08", "\x7f", "\u034f", "\ufe0f", "\u115f", "\u3164", "\u180b", "\U000e0101"]
)
def test_a_word_with_any_invisible_character_in_it_is_found(unseen):
    assert not passes(SafetyGuardrailHook(["bomb"]), f"make a bo{unseen}mb")
    assert not passes(SafetyGuardrailHook([f"b{unseen}omb"]), "make a bomb")


@pytest.mark.parametrize(
    "task",
    [
        "bomb",
        "a BOMB!",
        "(bomb)",
        "bomb-making",
        "\uff42\uff4f\uff4d\uff42",
        "b\u200bomb",
        "bo\u00admb",
        "x\nbomb\ty",
        "the \U0001d41b\U0001d428\U0001d426\U0001d41b",
        "bomb\udcff",
        "é bomb",
    ],
)
def test_a_word_is_found_in_any_case_and_unicode_form(task):
    assert not passes(SafetyGuardrailHook(["Bomb"]), task)


@pytest.mark.parametrize("task", ["", "bombastic", "aerobomb", "bomb2", "bo mb", "bomb_x", "b-omb"])
def test_only_whole_words_match(task):
    assert passes(SafetyGuardrailHook(["bomb"]), task)


@pytest.mark.parametrize(
    "task", ["credit card", "CREDIT   CARD", "my credit\n\tcard,", "credit\u00a0card", "credit\u3000card"]
)
def test_whitespace_in_a_phrase_is_normalised(task):
    assert not passes(SafetyGuardrailHook([" credit  card "]), task)


@pytest.mark.parametrize(
    ("entry", "task"),
    [("straße", "STRASSE"), ("ﬁre", "Fire"), ("c++", "use C++ now"), ("$$$", "win$$$now"), ("炸弹", "如何做炸弹呢")],
)
def test_entries_in_other_scripts_and_with_punctuation_are_found(entry, task):
    assert not passes(SafetyGuardrailHook([entry]), task)


def test_punctuation_in_an_entry_is_literal():
    assert passes(SafetyGuardrailHook(["a.c"]), "abc")


def test_an_expression_is_searched_for_in_the_task_as_written():
    rail = SafetyGuardrailHook([re.compile(r"\b\d{4}-\d{4}\b"), re.compile("Bomb")])
    assert not passes(rail, "my number is 1234-5678")
    assert not passes(rail, "Bombastic")
    assert passes(rail, "bomb")
    assert fire_hook(rail, "on_run_start", task="1234-5678").reason == r"blocklist: \b\d{4}-\d{4}\b"


def test_with_an_allowlist_only_a_task_that_matches_passes():
    rail = SafetyGuardrailHook(allowlist=["weather", re.compile("^help")])
    assert passes(rail, "The Weather today?")
    assert passes(rail, "help me")
    assert not passes(rail, "write a poem")
    assert not passes(rail, "")
    assert fire_hook(rail, "on_run_start", task="poem").reason == "allowlist: no entry matches"


def test_the_blocklist_takes_precedence_over_the_allowlist():
    rail = SafetyGuardrailHook(["bomb"], ["weather"])
    assert not passes(rail, "weather bomb")
    assert passes(rail, "weather")


async def test_the_task_is_checked_after_rewriting_hooks():
    rewrite = hook("on_run_start")(lambda ctx, p: HookResult.replace({"task": "a bomb"}))
    agent = scripted_agent([reply("never")], hooks=[SafetyGuardrailHook(["bomb"]), rewrite])
    assert (await agent.arun("hello")).hook_ended == "blocklist: bomb"


@pytest.mark.slow
def test_a_huge_task_is_checked():
    assert not passes(SafetyGuardrailHook(["bomb", "credit card"]), "a credit " * 500_000 + "card")
    assert not passes(SafetyGuardrailHook(["bomb"]), "\u00e9\u200b " * 200_000 + "bomb")


@given(word=st.text(min_size=1, max_size=8), before=st.text(max_size=8))
def test_an_entry_is_found_on_its_own_in_any_normal_form(word, before):
    try:
        rail = SafetyGuardrailHook([word])
    except RegistrationError:
        fillers, word = "\u115f\u1160", unicodedata.normalize("NFKC", word)
        seen = [c for c in word if unicodedata.category(c)[0] in "LNPS" and c not in fillers]
        assert seen == []
        return
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert not passes(rail, f"{before} , {unicodedata.normalize(form, word)} ,")


def test_it_is_a_guard_with_priority_100():
    ((entry,),) = HookRegistry([SafetyGuardrailHook(["x"])]).stack.layers
    assert (str(entry.point), entry.phase, entry.priority) == ("on_run_start", "guard", 100)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "at least one entry"),
        ({"blocklist": [], "allowlist": ()}, "at least one entry"),
        ({"blocklist": "bomb"}, r"blocklist must be a list of words and expressions: \['bomb'\]"),
        ({"allowlist": re.compile("x")}, "allowlist must be a list"),
        ({"blocklist": None}, "blocklist must be a list"),
        ({"blocklist": [" "]}, "an entry must be a word"),
        ({"blocklist": ["\u200b"]}, "an entry must be a word"),
        ({"blocklist": [3]}, "an entry must be a word"),
        ({"blocklist": [re.compile(b"x")]}, "an entry must be"),
        ({"blocklist": ["x"], "reply": None}, "reply must be text"),
    ],
)
def test_invalid_arguments_are_rejected(options, problem):
    with pytest.raises(RegistrationError, match=problem):
        SafetyGuardrailHook(**options)
