"""SensitiveDataHook: personal data and secrets are redacted or blocked."""

import asyncio
import re

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_TOKEN,
    Agent,
    AgentContext,
    HookResult,
    Message,
    RegistrationError,
    ScriptedModel,
    Session,
    call,
    hook,
    observer,
    reply,
    tool,
)
from hookline.events import ApprovalAsked, Failed, HookExecuted, ModelReplied, TextDelta, ToolStarted
from hookline.hooks import SensitiveDataHook
from hookline.models import ModelResponse
from hookline.payloads import ToolCall
from hookline.testing import EventLog, fire_hook, scripted_agent
from tests.cases import each_case

EMAIL, CARD, TOKEN = "bob@example.com", "4111 1111 1111 1111", "ghp_1234567890abcdefghijABCDEFGHIJ123456"
NUMBER = CARD.replace(" ", "")


class Letters(ScriptedModel):
    """Streams letter by letter."""

    async def stream(self, request):
        response = self._next(request)
        for letter in response.content:
            await asyncio.sleep(0)
            yield letter
        yield response


@tool
def send(to: str, body: str = "") -> str:
    """Send a message."""
    SENT.append((to, body))
    return "sent"


@tool
def look_up(name: str) -> dict:
    """Look somebody up."""
    return {"name": name, "mail": [EMAIL], EMAIL: {"card": int(NUMBER), "password": "letmein"}}


SENT = []


@pytest.fixture(autouse=True)
def nothing_sent():
    SENT.clear()


def all_of(result, log=(), model=None):
    """All text that is visible outside the hook."""
    return repr((result, list(log), model.requests if model else ()))


# The task


def test_sensitive_values_in_the_task_are_redacted():
    model, log = ScriptedModel([reply("Hello.")]), EventLog()
    result = Agent("a", llm=model, hooks=[SensitiveDataHook()], sinks=[log]).run(f"I am {EMAIL}, card {CARD}")
    assert result.task == result.messages[0].content == "I am [email], card [card]"
    assert model.requests[0].messages[0].content == "I am [email], card [card]"
    assert EMAIL not in all_of(result, log, model)
    assert CARD not in all_of(result, log, model)


def test_a_task_with_a_blocked_value_ends_the_run_and_is_recorded_nowhere():
    model, log = ScriptedModel([reply("Hello.")]), EventLog()
    guard = SensitiveDataHook(actions={"card": "block"}, reply="No cards, please.")
    result = Agent("a", llm=model, hooks=[guard], sinks=[log]).run(f"Pay with {CARD}")
    assert (result.status, result.reply, result.hook_ended) == ("ended", "No cards, please.", "found: card")
    assert model.requests == []
    assert CARD not in all_of(result, log)


# Replies


@pytest.mark.parametrize("action", ["redact", "mask", "hash"])
@pytest.mark.parametrize("kind", [ScriptedModel, Letters])
def test_the_streamed_text_is_redacted_like_the_recorded_text(kind, action):
    said = f"Write to {EMAIL}, or pay with {CARD}: the token is {TOKEN}."
    log = EventLog()
    result = Agent("a", llm=kind([reply(said)]), hooks=[SensitiveDataHook(action=action)], sinks=[log]).run("Who?")
    shown = [event.text for event in log.of(TextDelta)]
    assert "".join(shown) == result.reply != said
    assert len(shown) > 3
    assert result.reply == log.of(ModelReplied)[0].content == result.messages[-1].content
    for value in (EMAIL, CARD, TOKEN, "ghp_"):
        assert value not in all_of(result, log)


def test_a_blocked_value_ends_a_streamed_reply_before_it_is_shown():
    seen, log = [], EventLog()

    @observer(AFTER_LLM)
    def audit(ctx, answer):
        seen.append(answer.content)

    model = Letters([reply(f"The token is {TOKEN}, and there is more to say. " * 20)])
    guard = SensitiveDataHook(actions={"secret": "block"})
    result = Agent("a", llm=model, hooks=[guard, audit], sinks=[log]).run("Tell me")
    assert (result.status, result.hook_ended) == ("ended", "found: secret")
    assert "".join(event.text for event in log.of(TextDelta)) == "The token is "
    assert seen == ["The token is "]
    assert result.usage.output_tokens < 50
    assert "ghp_" not in all_of(result, log)


def test_a_value_added_to_a_reply_by_another_hook_is_blocked():
    @hook(AFTER_LLM, priority=60)
    def leak(ctx, answer):
        return answer.replace(content=f"It is {TOKEN}")

    result = scripted_agent([reply("Fine.")], hooks=[leak, SensitiveDataHook(actions={"secret": "block"})]).run("x")
    assert result.reply == SensitiveDataHook().reply
    assert "ghp_" not in all_of(result)


def test_an_answer_of_a_hook_is_cleaned():
    @hook(BEFORE_LLM)
    def cached(ctx, request):
        return HookResult.answer(f"Ask {EMAIL}")

    log = EventLog()
    result = scripted_agent([], hooks=[cached, SensitiveDataHook()], sinks=[log]).run("x")
    assert result.reply == "Ask [email]" == "".join(event.text for event in log.of(TextDelta))


async def test_replies_streamed_at_the_same_time_do_not_mix():
    class Slow(Letters):
        async def stream(self, request):
            name = request.messages[-1].content
            text = f"{name}: write to {name}@example.com or {name}2@example.com. " * 3 if len(name) < 9 else "Done."
            for letter in text:
                await asyncio.sleep(0)
                yield letter
            yield ModelResponse(text)

    @hook(BEFORE_STEP)
    async def judges(ctx, step):
        answers = await asyncio.gather(*(ctx.llm.complete(f"judge{n}", purpose="judge") for n in range(5)))
        for n, answer in enumerate(answers):
            assert answer.content == f"judge{n}: write to [email] or [email]. " * 3

    log = EventLog()
    agent = Agent("a", llm=Slow(), hooks=[judges, SensitiveDataHook(["email"])], sinks=[log])
    results = await asyncio.gather(*(agent.arun("A long task") for _ in range(4)))
    assert all(result.reply == "Done." for result in results)
    assert "@" not in "".join(event.text for event in log.of(TextDelta))


def test_a_broken_stream_does_not_affect_the_next_attempt():
    class Breaking(Letters):
        async def stream(self, request):
            if request.attempt == 1:
                yield "Write to bob"
                raise OSError("gone")
            async for piece in super().stream(request):
                yield piece

    @hook(ON_ERROR)
    def again(ctx, failure):
        return HookResult.retry()

    log = EventLog()
    model = Breaking([reply("@example.com is half an address.")])
    result = Agent("a", llm=model, hooks=[again, SensitiveDataHook()], sinks=[log]).run("x")
    assert result.reply == "@example.com is half an address."
    assert "".join(event.text for event in log.of(TextDelta)) == "Write to " + result.reply


# Tool calls


def test_a_call_with_a_blocked_value_in_its_arguments_does_not_run_and_returns_an_error():
    log = EventLog()
    turns = [call("send", to="eve", body=f"The token: {TOKEN}"), reply("I will not.")]
    result = scripted_agent(turns, tools=[send], hooks=[SensitiveDataHook()], sinks=[log]).run("x")
    assert SENT == []
    assert result.steps[0].outcomes == ("blocked",)
    assert "contain sensitive data (secret)" in result.messages[2].content
    assert log.of(ToolStarted) == []
    assert "ghp_" not in all_of(result, log)


def test_arguments_can_be_redacted_and_are_the_same_everywhere():
    @hook(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("ok?")

    @hook("approval_requested")
    def yes(ctx, request):
        return HookResult.approve()

    log = EventLog()
    guard = SensitiveDataHook(arguments={"email": "mask", "card": "redact"})
    turns = [[call("send", to=EMAIL, body=f"{CARD} {NUMBER}")], call("send", to=TOKEN), reply("Done.")]
    result = scripted_agent(turns, tools=[send], hooks=[guard, ask, yes], sinks=[log]).run("x")
    assert SENT == [("b***@example.com", "[card] [card]")]
    assert [step.outcomes for step in result.steps] == [("ok",), ("blocked",), ()]
    assert log.of(ApprovalAsked)[0].arguments == {"to": "b***@example.com", "body": "[card] [card]"}
    assert EMAIL not in all_of(result, log)
    assert NUMBER not in all_of(result, log)


@pytest.mark.parametrize(
    "arguments", [{"to": {"a": [EMAIL]}}, {EMAIL: 1}, {"to": int(NUMBER)}, {"to": "x", "password": "letmein"}]
)
def test_values_deep_in_arguments_in_keys_and_as_numbers_are_found(arguments):
    turns = [ToolCall("", "send", arguments), reply("Done.")]
    result = scripted_agent(turns, tools=[send], hooks=[SensitiveDataHook()]).run("x")
    assert SENT == []
    assert result.steps[0].outcomes == ("blocked",)
    for value in (EMAIL, NUMBER, "letmein"):
        assert value not in all_of(result)


def test_arguments_that_are_not_json_are_cleaned_too():
    turns = [ToolCall("", "send", f"to {EMAIL}"), reply("Done.")]
    result = scripted_agent(turns, tools=[send], hooks=[SensitiveDataHook()]).run("x")
    assert result.steps[0].outcomes == ("blocked",)
    assert EMAIL not in all_of(result)


def test_a_later_hook_can_add_a_secret_to_arguments():
    @hook(BEFORE_TOOL, priority=10)
    def log_in(ctx, request):
        return request.replace(arguments={**request.arguments, "body": TOKEN})

    turns = [call("send", to="the server"), reply("Done.")]
    scripted_agent(turns, tools=[send], hooks=[SensitiveDataHook(), log_in]).run("x")
    assert SENT == [("the server", TOKEN)]


def test_arguments_changed_by_an_earlier_hook_are_checked():
    @hook(BEFORE_TOOL, priority=60)
    def leak(ctx, request):
        return request.replace(arguments={"to": EMAIL})

    turns = [call("send", to="x"), reply("Done.")]
    result = scripted_agent(turns, tools=[send], hooks=[SensitiveDataHook(), leak]).run("x")
    assert result.steps[0].outcomes == ("blocked",)


# Tool results


def test_nested_results_are_cleaned():
    log = EventLog()
    turns = [call("look_up", name="bob"), reply("Found.")]
    result = scripted_agent(turns, tools=[look_up], hooks=[SensitiveDataHook()], sinks=[log]).run("x")
    expected = '{"name":"bob","mail":["[email]"],"[email]":{"card":"[card]","password":"[secret]"}}'
    assert result.messages[2].content == expected
    for value in (EMAIL, NUMBER, "letmein"):
        assert value not in all_of(result, log)


def test_a_result_with_a_blocked_value_is_withheld():
    turns = [call("look_up", name="bob"), reply("Found.")]
    result = scripted_agent(turns, tools=[look_up], hooks=[SensitiveDataHook(action="block")]).run("x")
    assert result.messages[2].content == "The result was withheld: it contains sensitive data (card, email, secret)."
    assert result.messages[2].is_error
    assert result.status == "completed"


def test_error_messages_are_cleaned_for_the_model_and_in_the_result():
    @tool
    def connect() -> str:
        """Connect."""
        raise OSError("cannot reach postgres://bob:s3cret@db.example.com")

    result = scripted_agent([call("connect"), reply("Sorry.")], tools=[connect], hooks=[SensitiveDataHook()]).run("x")
    assert result.messages[2].content == "OSError: cannot reach postgres://[secret]@db.example.com"
    assert result.errors[0].message == "cannot reach postgres://[secret]@db.example.com"
    assert "s3cret" not in all_of(result)


def test_megabytes_of_results_are_searched():
    @tool
    def read() -> str:
        """Read."""
        return "nothing to see here, move along\n" * 60_000 + EMAIL + "\n" + "and on it goes\n" * 90_000

    result = scripted_agent([call("read"), reply("Long.")], tools=[read], hooks=[SensitiveDataHook()]).run("x")
    assert EMAIL not in result.messages[2].content
    assert "[email]" in result.messages[2].content


# Requests


def test_with_requests_everything_sent_to_the_model_is_cleaned():
    model = ScriptedModel([call("send", to="x"), reply("One."), reply("Two.")])
    session = Session(messages=(Message("user", f"I am {EMAIL}"), Message("assistant", f"Hello {EMAIL}")))

    @hook(BEFORE_LLM, priority=80)
    def inject(ctx, request):
        return request.replace(messages=(*request.messages, Message("user", f"Note: {CARD}")))

    guard = SensitiveDataHook(requests=True, allow=["acme.com"])
    agent = Agent("a", "", f"Mail to {EMAIL} or a@acme.com.", llm=model, tools=[send], hooks=[guard, inject])
    agent.run("x", session=session)
    for request in model.requests:
        said = [message.content for message in request.messages]
        assert said[:3] == ["Mail to [email] or a@acme.com.", "I am [email]", "Hello [email]"]
        assert said[-1] == "Note: [card]"
    assert session.messages[0].content == "I am [email]"  # as it is stored


def test_a_request_with_a_blocked_value_is_not_sent():
    model = ScriptedModel([reply("One.")])
    agent = Agent(
        "a", "", f"The token is {TOKEN}.", llm=model, hooks=[SensitiveDataHook(action="block", requests=True)]
    )
    result = agent.run("x")
    assert (result.status, model.requests) == ("ended", [])


# Options


def test_the_points_depend_on_where_and_requests():
    every = {ON_RUN_START, BEFORE_STEP, ON_TOKEN, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_RUN_END}
    assert SensitiveDataHook().points == every
    assert SensitiveDataHook(requests=True).points == every | {BEFORE_LLM} == SensitiveDataHook.points
    assert SensitiveDataHook(where=["input"]).points == {ON_RUN_START, BEFORE_STEP, ON_RUN_END}
    assert SensitiveDataHook(where=["arguments"]).points == {AFTER_LLM, BEFORE_TOOL}


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("input", {"output", "arguments", "results"}),
        ("output", {"input", "arguments", "results"}),
        ("arguments", {"input", "output", "results"}),
        ("results", {"input", "output", "arguments"}),
    ],
)
def test_locations_that_are_not_named_stay_unchanged(where, left):
    turns = [[f"I write to out@{where}.com", call("look_up", name=f"args@{where}.com")], reply(f"Done, b@{where}.com")]
    guard = SensitiveDataHook(["email"], where=[where], arguments="redact")
    result = scripted_agent(turns, tools=[look_up], hooks=[guard]).run(f"in@{where}.com")
    shown = {
        "input": f"in@{where}.com" in result.task,
        "output": f"b@{where}.com" in result.reply,
        "arguments": f"args@{where}.com" in repr(result.messages[1].tool_calls),
        "results": EMAIL in result.messages[2].content,
    }
    assert {place for place, there in shown.items() if there} == left


def test_extra_kinds_are_found_and_allowed_values_kept():
    guard = SensitiveDataHook(["email"], extra={"employee": re.compile(r"E-\d{5}")}, allow=["acme.com"])
    result = scripted_agent([reply("Ask E-12345 at a@acme.com, or bob@x.org.")], hooks=[guard]).run("E-99999?")
    assert (result.task, result.reply) == ("[employee]?", "Ask [employee] at a@acme.com, or [email].")


def test_two_hooks_in_one_run_are_independent():
    hooks = [SensitiveDataHook(["email"], name) for name in ("mask", "redact")]
    log = EventLog()
    result = Agent("a", llm=Letters([reply(f"{EMAIL} is it. ")]), hooks=hooks, sinks=[log]).run("x")
    assert result.reply == "b***@example.com is it. " == "".join(event.text for event in log.of(TextDelta))


def test_reasons_name_kinds_and_no_values():
    log = EventLog()
    scripted_agent([reply(f"{EMAIL} {CARD}")], hooks=[SensitiveDataHook()], sinks=[log]).run(f"{TOKEN}")
    reasons = [event.reason for event in log.of(HookExecuted) if event.reason]
    assert reasons == ["found: secret", "found: card, email"]
    assert log.of(Failed) == []


@each_case(
    "options",
    [
        {"where": "input"},
        {"where": ["inputs"]},
        {"where": []},
        {"where": [3]},
        {"requests": 1},
        {"reply": None},
        {"arguments": "x"},
        {"arguments": {"email": "x"}},
        {"arguments": {"mail": "block"}},
        {"kinds": "email"},
        {"kinds": ["mail"]},
        {"action": "drop"},
        {"actions": {"mail": "mask"}},
        {"allow": "x"},
        {"key": "short"},
        {"extra": {"email": "x"}},
        {"private_ips": "no"},
        {"kinds": 3},
        {"allow": 3},
    ],
)
def test_invalid_arguments_are_rejected(options):
    with pytest.raises(RegistrationError):
        SensitiveDataHook(**options)


def test_the_reason_of_each_cleaned_request_names_the_kinds():
    log, session = EventLog(), Session("s")
    scripted_agent(["Noted."]).run(f"I am {EMAIL}.", session=session)
    hooks = [SensitiveDataHook(requests=True)]
    scripted_agent([call("look"), "x"], hooks=hooks, sinks=[log]).run("Who am I?", session=session)
    assert [event.reason for event in log.of(HookExecuted) if event.point == BEFORE_LLM] == ["found: email"] * 2


@pytest.mark.parametrize("text", ["", "\ud800", "a\x00b", "\u200b" * 10])
def test_texts_with_invalid_unicode_pass(text):
    guard = SensitiveDataHook(requests=True)
    ctx = AgentContext()
    assert fire_hook(guard, ON_RUN_START, ctx=ctx, task=text).payload.task == text
    assert fire_hook(guard, AFTER_LLM, ctx=ctx, content=text).payload.content == text
    assert fire_hook(guard, AFTER_TOOL, ctx=ctx, result={"a": [text]}).payload.result == {"a": [text]}
    assert fire_hook(guard, ON_TOKEN, ctx=ctx, delta=text, final=True).payload.delta == text


@pytest.mark.slow
def test_the_embedded_model_does_not_stream_an_address_from_its_prompt():
    pytest.importorskip("xllamacpp")
    log = EventLog()
    guard = SensitiveDataHook(where=["output"])
    agent = Agent("a", llm="local", hooks=[guard], sinks=[log], params={"max_tokens": 24})
    result = agent.run(f"Repeat exactly: My mail is {EMAIL}. My mail is {EMAIL}.")
    assert "".join(event.text for event in log.of(TextDelta)) == result.reply
    assert log.of(TextDelta)
    assert all(EMAIL not in event.text for event in log.of(TextDelta))
    assert EMAIL not in result.reply
    assert EMAIL in result.task


async def test_a_value_in_the_name_of_an_unknown_tool_is_redacted():
    log = EventLog()
    turns = [
        ModelResponse("", (ToolCall("1", f"pay {CARD}", {}), ToolCall("2", "send", {"to": "ann"}))),
        reply("Done."),
    ]
    agent = Agent("a", llm=ScriptedModel(turns), tools=[send], hooks=[SensitiveDataHook()], sinks=[log])
    result = await agent.arun("x")
    assert CARD not in repr(result)
    assert CARD not in repr(list(log))
    assert result.steps[0].outcomes[1] == "ok"
