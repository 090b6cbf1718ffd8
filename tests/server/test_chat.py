"""Chat completions through the official client and a real HTTP server."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AFTER_LLM,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    Agent,
    HookResult,
    Limits,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._kernel.points import POINTS
from hookline._kernel.values import ModelResponse
from hookline._web.http_server import HttpServer
from hookline.server.chat import api as chat_api
from hookline.server.chat.api import ChatApi
from hookline.server.chat.request import parse_request
from hookline.server.live_run import EventReader
from hookline.server.options import ServerOptions
from hookline.server.routing import Gate
from hookline.stores.errors import StoreError
from hookline.stores.keys import KeyStore

from ..waiting import wait_until
from .rig import ADMIN, make, serving
from .test_chat_request import body as chat_bodies
from .walk import Keys, client_of, walk

HI = [{"role": "user", "content": "Hi."}]
FAST = {"rate": 1e9, "burst": 1_000_000}


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return f"dark in {place}"


@asynccontextmanager
async def chatting(folder, *agents, keys=None, gate=None, **options):
    """A served chat API and its client."""
    async with serving(folder, *agents, **options) as service:
        api = ChatApi(service)
        the_gate = Gate(keys, ServerOptions(**{**FAST, **(gate or {})}))
        part = SimpleNamespace(routes=lambda: [*the_gate.routes(api.endpoints()), the_gate.fallback()])
        host = HttpServer([part], port=0, grace=1.0)
        await host.start()
        try:
            http = openai.DefaultAsyncHttpxClient(verify=False)  # loading certificates is slow
            async with openai.AsyncOpenAI(
                base_url=f"{host.url}/v1", api_key="hl_none", max_retries=0, http_client=http
            ) as client:
                yield SimpleNamespace(service=service, url=host.url, client=client)
        finally:
            await host.stop()


async def whole(place, messages=HI, model="helper", **options):
    answer = await place.client.chat.completions.create(model=model, messages=messages, **options)
    return answer.choices[0].message.content, answer.choices[0].finish_reason


async def streamed(place, messages=HI, model="helper", **options):
    text, finish = "", None
    async for chunk in await place.client.chat.completions.create(
        model=model, messages=messages, stream=True, **options
    ):
        for choice in chunk.choices:
            assert finish is None, "no text may follow the end"
            assert not choice.delta.tool_calls
            text, finish = text + (choice.delta.content or ""), choice.finish_reason
    return text, finish


async def lines(place, **fields):
    """The lines of a stream."""
    body = {"model": "helper", "messages": HI, "stream": True, **fields}
    async with (
        httpx.AsyncClient(verify=False, timeout=60) as client,
        client.stream("POST", f"{place.url}/v1/chat/completions", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            if line:
                yield line


# Completions and streams


async def test_a_completion_has_the_fields_that_clients_read(tmp_path):
    async with chatting(tmp_path, make([reply("Hello there.")])) as place:
        raw = await place.client.chat.completions.with_raw_response.create(model="helper", messages=HI)
        answer, run_id = raw.parse(), raw.headers["x-hookline-run"]
        assert (answer.id, answer.object, answer.model) == (f"chatcmpl-{run_id}", "chat.completion", "helper")
        assert answer.choices[0].message.role == "assistant"
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello there.", "stop")
        run = await place.service.get(run_id, ADMIN)
        assert (run.transport, run.status, run.task) == ("openai", "completed", "Hi.")
        assert run.correlation_id == raw.headers["x-correlation-id"]
        usage = answer.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (run.input_tokens, run.output_tokens)
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0


async def test_a_stream_has_role_text_end_and_usage_in_this_order(tmp_path):
    async with chatting(tmp_path, make([reply("Hello\u2028there, you.")])) as place:
        found = [line async for line in lines(place, stream_options={"include_usage": True})]
        assert found.pop() == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in found if not line.startswith(":")]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        first, *middle, end, usage = chunks
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle) == "Hello\u2028there, you."
        assert {chunk["choices"][0]["finish_reason"] for chunk in (first, *middle)} == {None}
        assert (end["choices"][0]["delta"], end["choices"][0]["finish_reason"]) == ({}, "stop")
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 3
        assert {chunk["usage"] for chunk in chunks[:-1]} == {None}


async def test_usage_is_streamed_only_on_request(tmp_path):
    async with chatting(tmp_path, make()) as place:
        assert not [line async for line in lines(place) if "usage" in line]


async def test_the_synchronous_client_works(tmp_path):
    async with chatting(tmp_path, make()) as place:

        def ask():
            with openai.OpenAI(base_url=f"{place.url}/v1", api_key="x") as client:
                one = client.chat.completions.create(model="helper", messages=HI).choices[0].message.content
                many = client.chat.completions.create(model="helper", messages=HI, stream=True)
                return one, "".join(chunk.choices[0].delta.content or "" for chunk in many)

        assert await asyncio.to_thread(ask) == ("done", "done")


async def test_models_are_the_agents(tmp_path):
    async with chatting(tmp_path, make(description="Helps."), make(name="other")) as place:
        models = (await place.client.models.list()).data
        assert [(model.id, model.object, model.owned_by) for model in models] == [
            ("helper", "model", "hookline"),
            ("other", "model", "hookline"),
        ]
        assert (await place.client.models.retrieve("helper")).description == "Helps."
        assert await whole(place, model="other") == ("done", "stop")
        with pytest.raises(openai.NotFoundError, match="no agent 'nobody'"):
            await place.client.models.retrieve("nobody")


async def test_the_caller_keeps_the_conversation(tmp_path):
    agent = make(instructions="Be kind.")
    async with chatting(tmp_path, agent) as place:
        before = [
            {"role": "system", "content": "Be rude."},
            {"role": "user", "content": [{"type": "text", "text": "One?"}]},
            {"role": "assistant", "content": "One."},
        ]
        assert await whole(place, [*before, {"role": "user", "content": "Two?"}]) == ("done", "stop")
        assert await whole(place) == ("done", "stop")
    first, second = ([(message.role, message.content) for message in each.messages] for each in agent.model.requests)
    assert first == [
        ("system", "Be kind."),
        ("user", "[system message of the caller]\nBe rude."),
        ("user", "One?"),
        ("assistant", "One."),
        ("user", "Two?"),
    ]
    assert second == [("system", "Be kind."), ("user", "Hi.")]


class Two:
    """A roster that answers with the personality of the session."""

    personalities = {"anna": SimpleNamespace(description="A"), "bert": SimpleNamespace(description="B")}
    first = "anna"
    agents = {name: make(name=name, turns=[reply(f"I am {name}.")] * 2) for name in ("anna", "bert")}
    __getitem__ = agents.__getitem__

    def start(self, task, *, session, **options):
        return self.agents[session.personality_id or self.first].start(task, session=session, **options)


async def test_the_requested_personality_answers(tmp_path):
    async with chatting(tmp_path, Two()) as place:
        assert await whole(place, model="bert") == ("I am bert.", "stop")
        assert await streamed(place, model="bert") == ("I am bert.", "stop")


# Tools, guards and limits


async def test_tools_run_on_the_server_and_text_next_to_calls_is_part_of_the_reply(tmp_path):
    turns = [["Let me look.", call("look", place="the cellar")], reply("It is dark.")]
    async with chatting(tmp_path, make(turns * 2, tools=[look])) as place:
        assert await whole(place) == ("Let me look.\n\nIt is dark.", "stop")
        assert await streamed(place) == ("Let me look.\n\nIt is dark.", "stop")


async def test_an_input_guard_ends_the_run_with_its_message(tmp_path):
    @guard(ON_RUN_START)
    def no(ctx, payload):
        return HookResult.end("I may not talk about that.")

    agent = make(hooks=[no])
    async with chatting(tmp_path, agent) as place:
        assert await whole(place) == ("I may not talk about that.", "content_filter")
        assert await streamed(place) == ("I may not talk about that.", "content_filter")
    assert agent.model.requests == []


async def test_a_blocked_tool_does_not_run_and_the_agent_continues(tmp_path):
    @guard(BEFORE_TOOL)
    def no(ctx, payload):
        return HookResult.block("The cellar is closed.")

    def turn(request):
        assert request.messages[-1].content == "The cellar is closed."
        return reply("It is closed.")

    ran = []

    @tool
    def look(place: str) -> str:
        """Look somewhere."""
        ran.append(place)
        return place

    async with chatting(tmp_path, make([call("look", place="x"), turn] * 2, tools=[look], hooks=[no])) as place:
        assert await whole(place) == ("It is closed.", "stop")
        assert await streamed(place) == ("It is closed.", "stop")
    assert ran == []


@hook(AFTER_LLM)
def polite(ctx, payload):
    return HookResult.retry("Be polite.") if "fool" in payload.content else None


@guard(AFTER_LLM)
def strict(ctx, payload):
    return HookResult.end("I cannot say that.") if "fool" in payload.content else None


@hook(AFTER_LLM)
def redact(ctx, payload):
    return payload.replace(content=payload.content.replace("fool", "***"))


@pytest.mark.parametrize(
    ("hooked", "counts", "finish"),
    [(polite, "My dear.", "stop"), (strict, "I cannot say that.", "content_filter"), (redact, "You ***.", "stop")],
)
async def test_text_rejected_by_a_hook_is_in_no_completion_and_in_no_stream(tmp_path, hooked, counts, finish):
    def agent(**options):
        model = ScriptedModel(
            [lambda request: reply("My dear." if "Be polite." in request.messages[-1].content else "You fool.")],
            loop=True,
        )
        return Agent("helper", llm=model, hooks=[hooked], **options)

    async with chatting(tmp_path / "safe", agent()) as place:
        assert await whole(place) == (counts, finish)
        assert await streamed(place) == (counts, finish)
    async with chatting(tmp_path / "settled", agent(), chat_stream="settled") as place:
        assert await whole(place) == (counts, finish)
        assert await streamed(place) == (counts, finish)
    async with chatting(tmp_path / "live", agent(stream="live")) as place:
        assert await streamed(place) == (f"You fool.\n\n{counts}", finish)
        assert await kept(place) == counts


async def kept(place):
    """The text of a stream for a client that takes back what a chunk withdraws."""
    text = ""
    async for chunk in await place.client.chat.completions.create(model="helper", messages=HI, stream=True):
        if withdrawn := (chunk.model_extra or {}).get("withdrawn"):
            text = text[:-withdrawn]
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    return text.strip()


async def test_a_client_can_take_back_what_the_end_of_a_run_replaced(tmp_path):
    @hook(ON_RUN_END)
    def last_word(ctx, result):
        return result.replace(reply=result.reply + " Really.")

    async with chatting(tmp_path, make([reply("Yes.")] * 2, hooks=[last_word])) as place:
        assert await kept(place) == "Yes. Really."


async def test_a_rejection_withdraws_nothing_of_an_earlier_step(tmp_path):
    @hook(AFTER_LLM)
    def polite(ctx, payload):
        return HookResult.retry("Be polite.") if "fool" in payload.content else None

    turns = [["Let me look.", call("look", place="x")], reply("You fool."), reply("Dark.")]
    async with chatting(tmp_path, make(turns, tools=[look], hooks=[polite])) as place:
        assert await kept(place) == "Let me look.\n\nDark."


async def test_a_run_stopped_by_a_limit_has_the_finish_reason_length(tmp_path):
    turns = [["Looking.", call("look", place="x")]] * 4
    async with chatting(tmp_path, make(turns, tools=[look], limits=Limits(steps=2))) as place:
        assert await whole(place) == ("Looking.\n\nLooking.", "length")
        assert await streamed(place) == ("Looking.\n\nLooking.", "length")


async def test_streams_and_completions_pass_the_same_hooks(tmp_path):
    seen = []

    @observer(*(point for point in POINTS.values() if point.model == "pipeline"))
    def watch(point, ctx, payload):
        seen.append(str(point))

    agent = make([["Let me look.", call("look", place="x")], reply("Dark.")] * 2, tools=[look], hooks=[watch])
    async with chatting(tmp_path, agent) as place:
        text, _ = await whole(place)
        first, seen[:] = list(seen), []
        assert (text, first) == ((await streamed(place))[0], seen)
    assert {"on_run_start", "on_token", "after_llm", "before_tool", "on_run_end"} <= {*first}


async def test_a_call_can_be_approved_while_the_client_waits(tmp_path):
    @guard(BEFORE_TOOL)
    def ask(ctx, payload):
        return HookResult.ask("May I look?")

    agent = make([call("look", place="x"), reply("Dark.")] * 2, tools=[look], hooks=[ask])
    async with chatting(tmp_path, agent, heartbeat=0.1) as place:
        approvals = place.service.approvals

        async def approve():
            await wait_until(lambda: approvals.rows(status="pending"))
            (row,) = approvals.rows(status="pending")
            approvals.decide(row.id, decision="approve", digest=row.digest, by="somebody")

        waiting = asyncio.create_task(whole(place))
        await approve()
        assert await waiting == ("Dark.", "stop")

        seen = []
        async for line in lines(place):
            seen.append(line)
            if line == ": a call waits for approval" and seen.count(line) == 2:
                await approve()  # the second comment is the heartbeat
        assert seen[-1] == "data: [DONE]"


# Errors


async def test_a_failed_run_is_an_error_that_clients_do_not_retry(tmp_path):
    agent = make([RuntimeError("the model is broken")] * 3)
    async with chatting(tmp_path, agent) as place:
        eager = place.client.with_options(max_retries=3)
        with pytest.raises(openai.InternalServerError, match="the model is broken") as caught:
            await eager.chat.completions.create(model="helper", messages=HI)
        assert (caught.value.status_code, caught.value.code, caught.value.type) == (500, "run_failed", "server_error")
        run = await place.service.get(caught.value.response.headers["x-hookline-run"], ADMIN)
        assert run.status == "failed"
        with pytest.raises(openai.APIError, match="the model is broken"):
            await streamed(place)
        found = [line async for line in lines(place)]
        assert json.loads(found[-1].removeprefix("data: "))["error"]["code"] == "run_failed"
        assert not any("[DONE]" in line or '"finish_reason":"' in line for line in found)
        assert len(agent.model.requests) == 3


class Hanging(ScriptedModel):
    """A model that writes text and then waits."""

    def __init__(self):
        super().__init__()
        self.go, self.asked = asyncio.Event(), 0

    async def stream(self, request):
        self.asked += 1
        yield "Well,"
        await self.go.wait()
        yield " yes."
        yield ModelResponse("Well, yes.")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_run_is_an_error(tmp_path, stream):
    model = Hanging()
    async with chatting(tmp_path, Agent("helper", llm=model)) as place:
        asking = asyncio.create_task((streamed if stream else whole)(place))
        await wait_until(lambda: model.asked)
        (run,) = await place.service.list(ADMIN)
        await place.service.cancel(run.id, ADMIN, "enough")
        with pytest.raises(openai.APIError, match="cancelled: enough") as caught:
            await asking
        assert caught.value.code == "run_cancelled"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_interrupted_run_is_an_error(tmp_path, stream):
    model = Hanging()
    async with chatting(tmp_path, Agent("helper", llm=model)) as place:
        asking = asyncio.create_task((streamed if stream else whole)(place))
        await wait_until(lambda: model.asked)
        await place.service.close(grace=0)
        with pytest.raises(openai.APIError, match="the server stopped") as caught:
            await asking
        assert caught.value.code == "run_interrupted"
        with pytest.raises(openai.InternalServerError) as caught:
            await whole(place)
        assert (caught.value.status_code, caught.value.code) == (503, "unavailable")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnected_client_does_not_stop_the_run_and_leaves_nothing_behind(tmp_path, stream):
    model = Hanging()
    async with chatting(tmp_path, Agent("helper", llm=model)) as place:
        body = {"model": "helper", "messages": HI, "stream": stream}
        async with httpx.AsyncClient(verify=False, timeout=60) as client:
            post = client.stream("POST", f"{place.url}/v1/chat/completions", json=body)
            if stream:
                async with post as answer:
                    async for line in answer.aiter_lines():
                        if "Well," in line:
                            break
            else:
                waiting = asyncio.create_task(post.__aenter__())
                await wait_until(lambda: model.asked and place.service.counts()["readers"])
                waiting.cancel()
                await asyncio.wait([waiting])
        await wait_until(lambda: place.service.counts()["readers"] == 0)
        (run,) = await place.service.list(ADMIN)
        assert run.status == "running"
        model.go.set()
        run = await place.service.wait(run.id, ADMIN)
        assert (run.status, run.reply) == ("completed", "Well, yes.")


async def test_a_store_error_is_logged_and_reported_without_details(tmp_path, monkeypatch, caplog):
    async def broken(*args):
        raise StoreError("/secret/path/runs.db is gone")

    async with chatting(tmp_path, make()) as place:
        monkeypatch.setattr(EventReader, "more", broken)
        with pytest.raises(openai.InternalServerError, match="events cannot be read now") as caught:
            await whole(place)
        assert caught.value.response.headers["x-should-retry"] == "false"
        with pytest.raises(openai.APIError, match="events cannot be read now") as streaming:
            await streamed(place)
        assert "/secret" not in f"{caught.value} {streaming.value}"
        await wait_until(lambda: place.service.counts()["readers"] == 0)
        monkeypatch.setattr(place.service, "read", broken)
        with pytest.raises(openai.InternalServerError) as caught:
            await place.client.with_options(max_retries=0).chat.completions.create(model="helper", messages=HI)
        assert (caught.value.code, caught.value.response.headers["retry-after"]) == ("store", "5")
        assert "/secret" not in str(caught.value)
    assert caplog.text.count("/secret/path/runs.db is gone") == 3


async def test_a_run_whose_events_cannot_be_read_is_cancelled(tmp_path):
    model = Hanging()
    async with chatting(tmp_path, Agent("helper", llm=model), max_streams=1) as place:
        first = asyncio.create_task(whole(place))
        await wait_until(lambda: place.service.counts()["readers"])
        with pytest.raises(openai.RateLimitError, match="too many streams"):
            await whole(place)
        assert sorted(run.status for run in await place.service.list(ADMIN)) == ["cancelled", "running"]
        model.go.set()
        assert await first == ("Well, yes.", "stop")


async def test_errors_raise_the_matching_exceptions_of_the_client(tmp_path):
    keys = KeyStore(tmp_path / "keys.db")
    run, read = keys.add("runs", ["run"])[1], keys.add("reads", ["read"])[1]
    async with chatting(tmp_path, make(), keys=keys, max_runs_per_caller=1) as place:

        async def failing(kind, key=run, **fields):
            client = place.client.with_options(api_key=key)
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(**{"model": "helper", "messages": HI, **fields})
            assert set(caught.value.body) == {"message", "type", "param", "code"}
            return caught.value.type, caught.value.code, caught.value.param

        assert await failing(openai.AuthenticationError, "hl_wrong") == ("authentication_error", "unauthorized", None)
        assert await failing(openai.PermissionDeniedError, read) == ("permission_error", "forbidden", None)
        assert await failing(openai.NotFoundError, model="no") == ("invalid_request_error", "model_not_found", "model")
        assert await failing(openai.BadRequestError, n=2) == ("invalid_request_error", "unsupported_parameter", "n")
        assert len((await place.client.with_options(api_key=read).models.list()).data) == 1
        async with httpx.AsyncClient(verify=False, headers={"Authorization": f"Bearer {run}"}, timeout=60) as client:
            answer = await client.put(f"{place.url}/v1/chat/completions")
            assert answer.status_code == 405
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert (await client.post(f"{place.url}/v1/chat/completions", content=b"\xff{")).status_code == 400
    keys.close()


async def test_exceeded_limits_raise_rate_limit_errors_in_the_client(tmp_path):
    model = Hanging()
    async with chatting(
        tmp_path, Agent("helper", llm=model), max_runs_per_caller=1, gate={"rate": 0.001, "burst": 3}
    ) as place:
        first = asyncio.create_task(whole(place))
        await wait_until(lambda: model.asked)
        with pytest.raises(openai.RateLimitError, match="which is the limit") as caught:
            await whole(place)
        assert caught.value.code == "busy"
        assert float(caught.value.response.headers["retry-after"]) > 0
        model.go.set()
        await first
        await whole(place)
        with pytest.raises(openai.RateLimitError, match="too many requests") as caught:
            await whole(place)
        assert (caught.value.type, caught.value.code) == ("rate_limit_error", "too_many_requests")


async def test_the_chat_endpoints_need_their_rights(tmp_path):
    store = KeyStore(tmp_path / "keys.db")
    async with serving(tmp_path) as service:
        endpoints = ChatApi(service).endpoints()
        gate = Gate(store, ServerOptions(**FAST))
        keys = Keys.of(store)
        async with client_of([*gate.routes(endpoints), gate.fallback()]) as client:
            await walk(client, endpoints, keys, lambda: sum(service.counts().values()) == 0)
        assert await service.list(ADMIN) == []
    store.close()


@settings(max_examples=5)
@given(bodies=st.lists(chat_bodies, min_size=8, max_size=8))
def test_no_request_causes_a_server_error(bodies):
    async def send(folder):
        async with serving(folder) as service:
            gate = Gate(None, ServerOptions(**FAST))
            async with client_of(gate.routes(ChatApi(service).endpoints())) as client:
                return [await client.post("/v1/chat/completions", content=json.dumps(body)) for body in bodies]

    with TemporaryDirectory() as folder:
        answers = asyncio.run(send(Path(folder)))
    for answer in answers:
        assert answer.status_code in (200, 400, 404), answer.text
        assert answer.status_code == 200 or {"type", "param"} < set(answer.json()["error"])


@pytest.mark.slow
async def test_the_embedded_model_answers_chat_requests(tmp_path):
    pytest.importorskip("xllamacpp")
    agent = Agent("helper", llm="local", params={"max_tokens": 8})
    async with chatting(tmp_path, agent) as place:
        text, finish = await streamed(place, [{"role": "user", "content": "Say hello."}])
        assert text.strip()
        assert finish in ("stop", "length")


# Files


async def test_a_picture_of_the_official_client_reaches_the_model(tmp_path):
    from base64 import b64encode

    png = b"\x89PNG\r\n\x1a\npixels"
    agent = make()
    url = f"data:image/png;base64,{b64encode(png).decode()}"
    content = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": url}}]
    async with chatting(tmp_path, agent) as place:
        assert await whole(place, [{"role": "user", "content": content}]) == ("done", "stop")
    (message,) = agent.model.requests[0].messages
    assert (message.content, [each.data for each in message.attachments]) == ("Look.", [png])


async def test_a_picture_in_the_history_has_the_limit_of_the_agent_too(tmp_path):
    agent = make(max_attachment=10)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgpwaXhlbHM="}}
    history = [{"role": "user", "content": [picture]}, {"role": "assistant", "content": "Seen."}]
    async with chatting(tmp_path, agent) as place:
        with pytest.raises(openai.BadRequestError, match="the limit for an attachment is 10 bytes"):
            await whole(place, [*history, *HI])
    assert agent.model.requests == []


async def test_the_event_loop_goes_on_while_large_requests_are_converted(tmp_path, monkeypatch):
    """Each conversion waits for the event loop, which a conversion in the event loop would wait for in vain."""
    loop, active = asyncio.get_running_loop(), []

    def parse(body):
        active.append(body)
        assert len(active) == 1  # one at a time: many threads would delay the event loop as well
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), loop).result(30)
        active.remove(body)
        return parse_request(body)

    monkeypatch.setattr(chat_api, "parse_request", parse)
    messages = [*({"role": "user", "content": "words " * 10} for _ in range(2000)), *HI]
    async with chatting(tmp_path, make()) as place:
        replies = await asyncio.gather(*(whole(place, messages) for _ in range(3)))
    assert [text for text, *_ in replies] == ["done"] * 3
