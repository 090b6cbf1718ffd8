"""ToolOutputTruncatorHook: long tool results are shortened."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    AFTER_TOOL,
    AgentContext,
    HookResult,
    RegistrationError,
    RunFailedError,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.hooks import ToolOutputTruncatorHook
from hookline.hooks._support.messages import excerpt
from hookline.stores import ArtifactStore
from hookline.testing import fire_hook, scripted_agent


class Store:
    def __init__(self):
        self.kept = {}

    def save(self, name, text):
        self.kept[name] = text


class SlowStore(Store):
    async def save(self, name, text):
        super().save(name, text)


class EmptyStore(Store):
    def __len__(self):
        return len(self.kept)


class FullStore:
    def save(self, name, text):
        raise OSError("disk full")


@tool
def give(n: int) -> str:
    """Give n characters."""
    return "".join(chr(97 + i % 26) for i in range(n))


@tool
def structure(n: int) -> list:
    """Give a list."""
    return [{"number": i} for i in range(n)]


@tool
def fail(n: int) -> str:
    """Fail."""
    raise ValueError("e" * n)


def text_of(turn, cutter, **options):
    agent = scripted_agent([turn, reply("ok")], tools=[give, structure, fail], hooks=[cutter])
    result = agent.run("x", **options)
    assert result.status == "completed"
    return result.messages[2]


@pytest.mark.parametrize("size", [0, 1, 299, 300])
def test_a_short_result_is_unchanged(size):
    assert len(text_of(call("give", n=size), ToolOutputTruncatorHook(300)).content) == size


@pytest.mark.parametrize("size", [301, 350, 1000, 100_000])
def test_a_long_result_becomes_beginning_mark_and_end(size):
    cut = text_of(call("give", n=size), ToolOutputTruncatorHook(300)).content
    whole = "".join(chr(97 + i % 26) for i in range(size))
    assert len(cut) <= 300
    head, _, rest = cut.partition("\n[... ")
    number, _, tail = rest.partition(" characters left out ...]\n")
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) + len(tail) + int(number) == size
    assert head
    assert tail


def test_fifty_megabytes_are_shortened():
    @tool
    def much() -> str:
        """Give much."""
        return "x" * 50_000_000

    result = scripted_agent([call("much"), reply("ok")], tools=[much], hooks=[ToolOutputTruncatorHook()]).run("x")
    assert 3900 < len(result.messages[2].content) <= 4000


def test_a_json_result_is_shortened_as_text():
    short, long = (text_of(call("structure", n=n), ToolOutputTruncatorHook(300)) for n in (2, 500))
    assert short.content == '[{"number":0},{"number":1}]'
    assert long.content.startswith('[{"number":0},')
    assert long.content.endswith('{"number":499}]')
    assert len(long.content) <= 300


def test_an_error_is_shortened_and_stays_an_error():
    cut = text_of(call("fail", n=5000), ToolOutputTruncatorHook(300))
    assert cut.is_error
    assert cut.content.startswith("ValueError: eee")
    assert len(cut.content) <= 300


def test_the_message_of_a_block_is_shortened_too():
    @guard("before_tool")
    def no(ctx, request):
        return HookResult.block("n" * 5000)

    agent = scripted_agent([call("give", n=1), reply("ok")], tools=[give], hooks=[no, ToolOutputTruncatorHook(300)])
    result = agent.run("x")
    assert result.steps[0].outcomes == ("blocked",)
    assert len(result.messages[2].content) <= 300


def test_redacted_data_is_not_saved():
    store = Store()

    @hook(AFTER_TOOL, priority=50)
    def redact(ctx, result):
        return result.replace(result=result.result.replace("abc", "***"))

    cutter = ToolOutputTruncatorHook(300, artifacts=store)
    agent = scripted_agent([call("give", n=5000), reply("ok")], tools=[give], hooks=[cutter, redact])
    agent.run("x")
    (kept,) = store.kept.values()
    assert "abc" not in kept


@pytest.mark.parametrize("store", [Store(), SlowStore(), EmptyStore()])
@pytest.mark.parametrize("of_the_context", [True, False])
def test_the_full_text_is_saved_as_an_artifact_that_the_mark_names(store, of_the_context):
    cutter = ToolOutputTruncatorHook(300, artifacts=True if of_the_context else store)
    cut = text_of(call("structure", n=500), cutter, ctx=AgentContext(artifacts=store if of_the_context else None))
    (name,) = store.kept
    assert f"the full text is artifact {name} ..." in cut.content
    assert store.kept.pop(name).endswith('{"number":499}]')
    assert len(cut.content) <= 300


def test_the_mark_names_the_tool_to_read_the_artifact(tmp_path):
    store = ArtifactStore(tmp_path)
    turns = [
        call("give", n=1000),
        lambda request: call(
            "read_artifact", name=re.search("artifact (give_\\w+\\.txt): use", request.messages[-1].content)[1]
        ),
        reply("ok"),
    ]
    cutter = ToolOutputTruncatorHook(300, artifacts=store)
    result = scripted_agent(turns, tools=[give, store], hooks=[cutter]).run("x")
    assert [step.outcomes for step in result.steps] == [("ok",), ("ok",), ()]


def test_two_results_of_one_call_id_are_two_artifacts():
    store = Store()
    for _ in range(2):
        text_of(call("give", n=1000), ToolOutputTruncatorHook(300, artifacts=store))
    assert len(store.kept) == 2


def test_results_of_read_artifact_are_shortened_but_not_saved_again():
    @tool
    def read_artifact() -> str:
        """Read."""
        return "x" * 1000

    store = Store()
    cutter = ToolOutputTruncatorHook(300, artifacts=store)
    result = scripted_agent([call("read_artifact"), reply("ok")], tools=[read_artifact], hooks=[cutter]).run("x")
    assert len(result.messages[2].content) <= 300
    assert store.kept == {}


@pytest.mark.parametrize("name", ["../../etc/passwd", "a" * 500, "", "\ud800", "ü/\0", "C:\\x"])
def test_an_invented_tool_name_becomes_a_safe_file_name(name):
    store = Store()
    cutter = ToolOutputTruncatorHook(300, artifacts=store)
    verdict = fire_hook(cutter, AFTER_TOOL, id="../x", name=name, error="e" * 1000)
    (kept,) = store.kept
    assert kept.isascii()
    assert kept.endswith(".txt")
    assert kept.removesuffix(".txt").replace("_", "").isalnum()
    assert len(kept) < 100
    assert len(verdict.payload.error) <= 300


def test_a_text_that_cannot_be_saved_fails_the_run():
    cutter = ToolOutputTruncatorHook(300, artifacts=FullStore())
    with pytest.raises(RunFailedError, match="disk full"):
        text_of(call("give", n=1000), cutter)


def test_a_context_without_a_store_says_what_to_do():
    with pytest.raises(RunFailedError, match=r"AgentContext\(artifacts="):
        text_of(call("give", n=1000), ToolOutputTruncatorHook(300, artifacts=True))


def test_later_hooks_get_the_shortened_text():
    seen = []

    @observer(AFTER_TOOL)
    def watch(ctx, result):
        seen.append(len(result.text))

    agent = scripted_agent([call("give", n=1000), reply("ok")], tools=[give])
    agent.register_hook(watch)
    agent.register_hook(ToolOutputTruncatorHook(300))
    agent.run("x")
    assert seen[0] <= 300


@given(st.text(alphabet=st.characters(codec=None), min_size=201, max_size=2000), st.integers(200, 400))
def test_any_text_is_short_enough_and_shortening_is_idempotent(text, limit):
    cut = fire_hook(ToolOutputTruncatorHook(limit), AFTER_TOOL, id="c", name="t", result=text).payload.result
    assert len(cut) <= limit
    assert excerpt(cut, limit) == cut


@pytest.mark.parametrize("limit", [0, 1, 10, 30, 60, 99])
def test_an_excerpt_is_never_longer_than_its_limit(limit):
    assert len(excerpt("x" * 100, limit, "; and more")) <= limit


@pytest.mark.parametrize("size", [0, 199, -1, "300", 300.0, True, None])
def test_invalid_arguments_are_rejected(size):
    with pytest.raises(RegistrationError, match="max_chars"):
        ToolOutputTruncatorHook(size)


def test_a_folder_is_accepted(tmp_path):
    cut = text_of(call("give", n=1000), ToolOutputTruncatorHook(300, artifacts=str(tmp_path / "kept")))
    (kept,) = ArtifactStore(tmp_path / "kept").list()
    assert (kept.size, kept.media_type) == (1000, "text/plain")
    assert f"the full text is artifact {kept.name}" in cut.content


@pytest.mark.parametrize("store", ["", 1, object(), ArtifactStore])
def test_a_store_must_be_able_to_save(store):
    with pytest.raises(RegistrationError, match=r"save\(name, text\)"):
        ToolOutputTruncatorHook(300, artifacts=store)
