"""The A2A methods, called with the official client of version 1.0."""

import asyncio
import json
from contextlib import aclosing

import pytest
from a2a.client.errors import A2AClientError
from a2a.types import (
    CancelTaskRequest,
    ListTasksRequest,
    Part,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict

from hookline import AFTER_LLM, BEFORE_TOOL, Agent, HookResult, Limits, ScriptedModel, call, guard, hook, reply, tool
from hookline._kernel.payloads import ApprovalRequest, Question, ToolCallRequest
from hookline._kernel.values import Ids
from hookline._run.events import ApprovalAsked
from hookline.points import POINTS
from hookline.server.a2a.tasks import TaskFollower, waiting_calls
from hookline.stores import ApprovalPolicy, ApproverRights, CallPattern
from hookline.stores import runs as stored_runs
from hookline.stores.approvals import ApprovalStore
from hookline.stores.audit.log import AuditLog
from hookline.stores.runs import RunRecord, StoredEvent
from hookline.teams import Team

from ...waiting import wait_until
from ..rig import ADMIN, Blocker, make
from .rig import (
    VERSION,
    assemble,
    data_of,
    got,
    message_request,
    reply_of,
    sent,
    serving_a2a,
    state,
    stream_events,
    text_of,
)

PNG = b"\x89PNG\r\n\x1a\npixels"


@tool
def look(at: str, ctx) -> str:
    """Look at something."""
    ctx.progress(0.5, "half of it")
    return f"saw {at}"


@tool
def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@guard(BEFORE_TOOL)
def ask(ctx, payload):
    return HookResult.ask(f"May {payload.name} run?")


def asking(*turns):
    return make(turns or [call("delete", path="a.txt"), reply("gone")], tools=[delete], hooks=[ask])


def updates(events):
    return [event.status_update for event in events if event.HasField("status_update")]


def check_nothing_left(rig):
    """Check that no reader is open."""
    return wait_until(lambda: rig.service.counts()["readers"] == 0)


# Messages


async def test_a_message_starts_a_task_that_ends_with_the_reply(tmp_path):
    async with serving_a2a(tmp_path, make([reply("hello there")])) as rig, rig.client() as client:
        task = await sent(client, message_request("hi", context="talk"))
        assert (state(task), reply_of(task), task.context_id) == ("COMPLETED", "hello there", "talk")
        assert [text_of(each) for each in task.history] == ["hi"]
        assert await got(client, task.id) == task
        assert (await rig.service._load(task.id)).transport == "a2a"
        await check_nothing_left(rig)


async def test_messages_of_one_context_share_a_conversation(tmp_path):
    agent = make([reply("one"), reply("two"), reply("three")])
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        first = await sent(client, message_request("a"))
        await sent(client, message_request("b", context=first.context_id))
        assert [m.content for m in agent.model.requests[1].messages if m.role != "system"] == ["a", "one", "b"]
        await sent(client, message_request("c"))
        assert [m.content for m in agent.model.requests[2].messages if m.role != "system"] == ["c"]


async def test_a_stream_reports_tools_and_adds_up_to_the_task(tmp_path):
    agent = make([call("look", at="the sky"), reply("it is blue")], tools=[look])
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        events = await stream_events(client, message_request("what is up?"))
        assert state(events[0].task) == "SUBMITTED"
        assert [state(each) for each in updates(events)] == ["WORKING"] * 4 + ["COMPLETED"]
        steps = [MessageToDict(each.metadata) for each in updates(events)[1:4]]
        assert [each["phase"] for each in steps] == ["tool_start", "progress", "tool_end"]
        assert {(each["tool"], each["call_id"]) for each in steps} == {("look", "call_0_0")}
        assert (steps[1]["fraction"], steps[2]["outcome"]) == (0.5, "ok")
        assert all(text_of(each.status.message) for each in updates(events)[1:4])
        assert "half of it" in text_of(updates(events)[2].status.message)
        task = assemble(events)
        assert (state(task), reply_of(task)) == ("COMPLETED", "it is blue")
        after = await got(client, task.id)
        assert (after.status, reply_of(after), after.history) == (task.status, reply_of(task), task.history)


async def test_discarded_text_is_replaced_in_the_stream(tmp_path):
    @hook(AFTER_LLM)
    def again(ctx, response):
        return HookResult.retry("no") if response.content == "wrong" else None

    agent = make([reply("wrong"), reply("right")], hooks=[again], stream="live")
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        events = await stream_events(client, message_request("hi"))
        pieces = [
            (event.artifact_update.append, event.artifact_update.artifact.parts[0].text)
            for event in events
            if event.HasField("artifact_update")
        ]
        assert (False, "") in pieces
        assert reply_of(assemble(events)) == "right"


async def test_text_before_a_tool_call_is_not_the_reply(tmp_path):
    agent = make([reply("let me look", tool_calls=[call("look", at="x")]), reply("seen")], tools=[look])
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        events = await stream_events(client, message_request("hi"))
        assert "let me look" in str(events)
        assert reply_of(assemble(events)) == "seen"


async def test_a_stream_reports_the_tools_of_subagents(tmp_path):
    team = Team(max_handoffs=0)
    desk = make([call("delegate", to="eye", task="look"), reply("done")], name="desk", tools=[team])
    team.add(desk)
    eye = Agent("eye", "looks", llm=ScriptedModel([call("look", at="x"), reply("seen")]), tools=[look])
    team.add(eye)
    async with serving_a2a(tmp_path, desk) as rig, rig.client("desk") as client:
        events = await stream_events(client, message_request("hi"))
        task_from_record = [MessageToDict(each.metadata) for each in updates(events)]
        phases = [each["phase"] for each in task_from_record if each.get("agent") == "eye"]
        assert phases == ["tool_start", "progress", "tool_end"]
        assert state(assemble(events)) == "COMPLETED"


async def test_return_immediately_returns_the_task_at_once(tmp_path):
    blocker = Blocker()
    async with serving_a2a(tmp_path, blocker.agent()) as rig, rig.client() as client:
        task = await sent(client, message_request("go", now=True))
        assert state(task) in ("SUBMITTED", "WORKING")
        await wait_until(lambda: blocker.entered)
        assert state(await got(client, task.id)) == "WORKING"
        blocker.open.set()
        await rig.service._live[task.id].task
        assert state(await got(client, task.id)) == "COMPLETED"


async def test_files_reach_the_agent_as_attachments(tmp_path):
    agent = make()
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        request = message_request("look")
        request.message.parts.append(Part(raw=PNG, media_type="image/png", filename="../photo.png"))
        request.message.parts.append(Part(url="http://example.com/x.pdf"))
        await sent(client, request)
        photo, link = agent.model.requests[0].messages[-1].attachments
        assert (photo.name, photo.data, link.url) == ("photo.png", PNG, "http://example.com/x.pdf")


async def test_a_running_task_takes_files_within_the_limit_of_the_agent(tmp_path):
    blocker = Blocker()
    model = ScriptedModel([call("blocker"), "Seen."])
    agent = Agent("helper", llm=model, tools=[blocker.tool], max_attachment=len(PNG))
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        task = await sent(client, message_request("hi", now=True))
        await wait_until(lambda: blocker.entered)

        def with_file(data):
            request = message_request("look", task=task.id)
            request.message.parts.append(Part(raw=data, media_type="image/png"))
            return request

        with pytest.raises(ContentTypeNotSupportedError, match="the limit for an attachment is"):
            await sent(client, with_file(PNG + b"x"))
        following = asyncio.create_task(sent(client, with_file(PNG)))
        await wait_until(lambda: rig.service._live[task.id].unread)
        blocker.open.set()
        await following
    assert model.requests[1].messages[-1].attachments[0].data == PNG


async def test_data_reaches_the_agent_as_json_and_wrong_files_and_empty_messages_are_rejected(tmp_path):
    agent = make()
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        await sent(client, message_request("see:", data={"a": [1, 2.5, "ö"]}))
        assert agent.model.requests[0].messages[-1].content == 'see:\n\n{"a": [1, 2.5, "ö"]}'
        for part in (Part(raw=b"x", media_type="image/png"), Part(url="file:///etc/passwd"), Part(raw=b"")):
            request = message_request("look")
            request.message.parts.append(part)
            with pytest.raises(ContentTypeNotSupportedError):
                await sent(client, request)
        for request in (message_request(" \n"), message_request()):
            with pytest.raises(InvalidParamsError):
                await sent(client, request)
        assert len(await rig.service.list(ADMIN)) == 1


async def test_a_task_has_the_correlation_id_of_its_cause(tmp_path):
    async with serving_a2a(tmp_path) as rig:
        async with rig.client() as client:
            task = await sent(client, message_request("hi", metadata={"correlation_id": "from-message"}))
            assert task.metadata["correlation_id"] == "from-message"
            secret = "hl_" + "k" * 40
            task = await sent(client, message_request("hi", metadata={"correlation_id": secret}))
            assert task.metadata["correlation_id"] != secret, "ids are logged, keys must not be"
            assert task.metadata["run_id"] == task.id
        async with rig.client(headers={"X-Correlation-ID": "from-header"}) as client:
            events = await stream_events(client, message_request("hi", metadata={"correlation_id": "from-message"}))
            assert {each.metadata["correlation_id"] for each in updates(events)} == {"from-header"}
            run = await rig.service._load(events[0].task.id)
            assert run.correlation_id == "from-header"


# Final states


async def test_a_task_ended_by_a_guard_is_rejected_with_its_message(tmp_path):
    @guard("on_run_start")
    def no(ctx, payload):
        return HookResult.end("We do not talk about that.", reason="policy 7")

    agent = make(hooks=[no])
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        stream = assemble(await stream_events(client, message_request("hi")))
        task = await sent(client, message_request("hi"))
        for each in (stream, task, await got(client, task.id)):
            assert (state(each), text_of(each.status.message)) == ("REJECTED", "We do not talk about that.")
            assert reply_of(each) == ""
        assert agent.model.requests == []


@pytest.mark.parametrize(
    ("turns", "options", "says"),
    [
        ([TimeoutError("model timed out")], {}, "model timed out"),
        ([call("look", at="x"), call("look", at="y")], {"limits": Limits(steps=1)}, "steps"),
    ],
)
async def test_a_failed_task_is_never_completed(tmp_path, turns, options, says):
    agents = [make(list(turns), name=name, tools=[look], **options) for name in ("one", "two")]
    async with serving_a2a(tmp_path, *agents) as rig:
        async with rig.client("one") as client:
            stream = assemble(await stream_events(client, message_request("hi")))
        async with rig.client("two") as client:
            task = await sent(client, message_request("hi"))
            after = await got(client, task.id)
        for each in (stream, task, after):
            assert state(each) == "FAILED"
            assert says in text_of(each.status.message)


async def test_a_task_can_be_cancelled_once(tmp_path):
    blocker = Blocker()
    async with serving_a2a(tmp_path, blocker.agent()) as rig, rig.client() as client:
        following = asyncio.create_task(stream_events(client, message_request("go")))
        await wait_until(lambda: blocker.entered)
        (run,) = await rig.service.list(ADMIN)
        assert state(await client.cancel_task(CancelTaskRequest(id=run.id))) == "CANCELED"
        assert state(assemble(await following)) == "CANCELED"
        assert state(await got(client, run.id)) == "CANCELED"
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=run.id))
        with pytest.raises(TaskNotFoundError):
            await client.cancel_task(CancelTaskRequest(id="run_unknown"))


async def test_hooks_fire_the_same_with_and_without_a_stream(tmp_path):
    def seen_by(agent, seen):
        for point in sorted(POINTS, key=str):
            agent.register_hook(lambda ctx, payload, point=point: seen.append(str(point)), points=point)
        return agent

    def scripted(name, seen):
        return seen_by(make([call("look", at="x"), reply("done")], name=name, tools=[look]), seen)

    plain, streamed = [], []
    async with serving_a2a(tmp_path, scripted("plain", plain), scripted("streamed", streamed)) as rig:
        async with rig.client("plain") as client:
            await sent(client, message_request("hi"))
        async with rig.client("streamed") as client:
            await stream_events(client, message_request("hi"))
    assert plain == streamed
    assert "before_tool" in plain


# Subscriptions


async def test_a_new_subscription_after_a_broken_stream_loses_nothing(tmp_path):
    blocker = Blocker()
    agent = blocker.agent("the end of it")
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        before = []
        async with aclosing(client.send_message(message_request("go"))) as stream:
            async for event in stream:
                before.append(event)
                if event.HasField("status_update") and "phase" in event.status_update.metadata:
                    break
        await check_nothing_left(rig)
        id = before[0].task.id
        after = []

        async def follow():
            async for event in client.subscribe(SubscribeToTaskRequest(id=id)):
                after.append(event)

        following = asyncio.create_task(follow())
        await wait_until(lambda: after)
        assert state(after[0].task) == "WORKING"
        assert text_of(after[0].task.status.message) == text_of(before[-1].status_update.status.message)
        blocker.open.set()
        await following
        task = assemble(after)
        assert (state(task), reply_of(task)) == ("COMPLETED", "the end of it")
        assert [state(each) for each in updates(after)][-1] == "COMPLETED"
        with pytest.raises(UnsupportedOperationError):
            await anext(client.subscribe(SubscribeToTaskRequest(id=id)))
        await check_nothing_left(rig)


async def test_a_client_that_disconnects_early_leaves_nothing_open(tmp_path):
    blocker = Blocker()
    async with serving_a2a(tmp_path, blocker.agent()) as rig, rig.client() as client:
        waiting = asyncio.create_task(sent(client, message_request("go")))
        await wait_until(lambda: blocker.entered)
        waiting.cancel()
        await check_nothing_left(rig)
        blocker.open.set()
        (run,) = await rig.service.list(ADMIN)
        assert (await rig.service.wait(run.id, ADMIN)).status == "completed"


# Messages to a task and decisions


async def test_a_message_to_a_working_task_reaches_its_run(tmp_path):
    blocker = Blocker()
    agent = blocker.agent()
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        task = await sent(client, message_request("go", now=True))
        await wait_until(lambda: blocker.entered)
        await sent(client, message_request("and hurry", task=task.id, now=True))
        blocker.open.set()
        await rig.service.wait(task.id, ADMIN)
        assert "and hurry" in [message.content for message in agent.model.requests[-1].messages]
        assert [text_of(each) for each in (await got(client, task.id)).history] == ["go", "and hurry"]
        assert [text_of(each) for each in (await got(client, task.id, history_length=1)).history] == ["and hurry"]
        assert not (await got(client, task.id, history_length=0)).history
        with pytest.raises(UnsupportedOperationError):
            await sent(client, message_request("more", task=task.id))
        with pytest.raises(InvalidParamsError):
            await sent(client, message_request("more", task=task.id, context="another"))
        with pytest.raises(TaskNotFoundError):
            await sent(client, message_request("more", task="run_unknown"))


async def test_a_call_that_needs_approval_waits_and_runs_as_approved(tmp_path):
    async with serving_a2a(tmp_path, asking()) as rig, rig.client() as client:
        events = await stream_events(client, message_request("clean up"))
        last = updates(events)[-1]
        assert state(last) == "INPUT_REQUIRED"
        assert "delete" in text_of(last.status.message)
        assert "May delete run?" in text_of(last.status.message)
        (asked,) = data_of(last.status.message)
        assert (asked["tool"], asked["arguments"], asked["questions"]) == (
            "delete",
            {"path": "a.txt"},
            ["May delete run?"],
        )
        assert asked["approval"].startswith("appr_")
        assert asked["expires"] > 0
        id = events[0].task.id
        assert (await got(client, id)).status == last.status
        answer = {"approval": asked["approval"], "decision": "approve", "digest": asked["digest"]}
        rest = await stream_events(client, message_request(data=answer, task=id))
        assert rest[0].task.id == id
        task = assemble(rest)
        assert (state(task), reply_of(task)) == ("COMPLETED", "gone")
        phases = [each.metadata["phase"] for each in updates(rest) if "phase" in each.metadata]
        assert phases == ["approval_decided", "tool_start", "tool_end"]


async def test_an_unclear_decision_has_no_effect_and_says_what_to_send(tmp_path):
    agent = asking(call("delete", path="a.txt"), reply("kept"))
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        first = await sent(client, message_request("clean up"))
        assert state(first) == "INPUT_REQUIRED"
        (asked,) = data_of(first.status.message)
        wrong = [
            message_request(
                data={"approval": asked["approval"], "decision": "approve", "digest": "0" * 64}, task=first.id
            ),
            message_request(data={"approval": asked["approval"], "decision": "approve"}, task=first.id),
            message_request(
                data={"approval": "appr_x", "decision": "approve", "digest": asked["digest"]}, task=first.id
            ),
            message_request(data={"decision": "maybe", "digest": asked["digest"]}, task=first.id),
            message_request(data={"decision": "edit", "digest": asked["digest"]}, task=first.id),
            message_request("hm, what would that do?", task=first.id),
            message_request("yes, but keep b.txt", task=first.id),
        ]
        for request in wrong:
            task = await sent(client, request)
            assert state(task) == "INPUT_REQUIRED"
            assert asked["approval"] in text_of(task.status.message)
            assert data_of(task.status.message) == [asked]
        events = await stream_events(client, wrong[0])
        assert state(updates(events)[-1]) == "INPUT_REQUIRED"
        task = await sent(client, message_request("No, not that one.", task=first.id))
        assert (state(task), reply_of(task)) == ("COMPLETED", "kept")
        assert "not that one." in agent.model.requests[-1].messages[-1].content


async def test_an_ambiguous_yes_decides_nothing(tmp_path):
    agent = asking(call("delete", path="a.txt"), call("delete", path="b.txt"), call("delete", path="c.txt"), reply("x"))
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        task = await sent(client, message_request("clean up"))
        task = await sent(client, message_request("yes", task=task.id))
        (asked,) = data_of(task.status.message)
        assert asked["arguments"] == {
            "path": "b.txt"
        }  # the caller's own earlier decision does not make a yes ambiguous
        store = rig.service.approvals
        store.decide(asked["approval"], decision="deny", digest=asked["digest"], by="somebody else")
        await wait_until(lambda: [r for r in store.rows(status="pending") if r.arguments == {"path": "c.txt"}])
        (row,) = [r for r in store.rows(status="pending") if r.arguments == {"path": "c.txt"}]
        task = await sent(client, message_request("yes", task=task.id))
        assert (state(task), store.find(row.id).status) == ("INPUT_REQUIRED", "pending")
        task = await sent(client, message_request(f"approve {row.id[:12]}", task=task.id))
        assert (state(task), store.find(row.id).status) == ("COMPLETED", "approved")


async def test_a_call_can_be_edited_and_approved_for_a_session(tmp_path):
    agent = asking(
        call("delete", path="a.txt"), call("delete", path="c.txt"), call("delete", path="c.txt"), reply("done")
    )
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        task = await sent(client, message_request("clean up"))
        (asked,) = data_of(task.status.message)
        edit = {"decision": "edit", "digest": asked["digest"], "arguments": {"path": "b.txt"}}
        task = await sent(client, message_request(data=edit, task=task.id))
        assert agent.model.requests[-1].messages[-1].content == "deleted b.txt"
        assert state(task) == "INPUT_REQUIRED"
        (asked,) = data_of(task.status.message)
        allow = {"decision": "approve", "digest": asked["digest"], "remember": "session"}
        task = await sent(client, message_request(data=allow, task=task.id))
        assert state(task) == "COMPLETED"


async def test_with_two_waiting_calls_a_decision_must_name_one(tmp_path):
    agent = asking([call("delete", path="a.txt"), call("delete", path="b.txt")], reply("done"))
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        task = await sent(client, message_request("clean up", now=True))
        await wait_until(lambda: len(rig.service.approvals.rows(status="pending")) == 2)
        task = await got(client, task.id)
        assert len(data_of(task.status.message)) == 2
        task = await sent(client, message_request("yes", task=task.id))
        assert state(task) == "INPUT_REQUIRED"
        assert "2 calls wait" in text_of(task.status.message)
        for asked in data_of(task.status.message):
            answer = {key: asked[key] for key in ("approval", "digest")} | {"decision": "approve"}
            task = await sent(client, message_request(data=answer, task=task.id))
        assert state(task) == "COMPLETED"


async def test_a_late_decision_is_not_sent_to_the_agent(tmp_path):
    blocker = Blocker()
    async with serving_a2a(tmp_path, blocker.agent()) as rig, rig.client() as client:
        task = await sent(client, message_request("go", now=True))
        await wait_until(lambda: blocker.entered)
        late = {"approval": "appr_1", "decision": "approve", "digest": "0"}
        task = await sent(client, message_request(data=late, task=task.id))
        assert (state(task), "No call waits" in text_of(task.status.message)) == ("WORKING", True)
        blocker.open.set()
        await rig.service.wait(task.id, ADMIN)
        assert "decision" not in str(rig.service._store.events(task.id))


async def test_each_attempt_of_a_call_has_its_own_approval(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "hookline.server.a2a.tasks.APPROVAL_SECONDS", 3600
    )  # existing rows must be found without waiting
    store = ApprovalStore(tmp_path / "a.db")
    asked = []
    for attempt, path in ((1, "a.txt"), (2, "b.txt")):
        request = ToolCallRequest("call_1", "delete", {"path": path}, attempt=attempt)
        row = store.ask(
            ApprovalRequest(request, (Question("May it?", "ask"),), request.digest), seconds=60, ids=Ids("run_1")
        )
        asked.append(ApprovalAsked(run_id="run_1", call_id="call_1", tool="delete", digest=request.digest))
        if attempt == 1:
            store.decide(row.id, decision="deny", digest=row.digest, by="ann")
    run = RunRecord("run_1", "helper", "", "s", "s", "t", "c", "a2a", "x")
    follower = TaskFollower(run, None, store, None, None)
    rows = [
        await follower._find_rows(waiting_calls([StoredEvent("run_1", 1, "approval_asked", 0.0, event.to_json())]))
        for event in asked
    ]
    assert rows == [{}, {("run_1", "call_1"): row}]


async def test_a_subscription_to_a_waiting_task_continues_after_an_approval_elsewhere(tmp_path):
    async with serving_a2a(tmp_path, asking()) as rig, rig.client() as client:
        task = await sent(client, message_request("clean up"))
        events = []

        async def follow():
            async for event in client.subscribe(SubscribeToTaskRequest(id=task.id)):
                events.append(event)

        following = asyncio.create_task(follow())
        await wait_until(lambda: events)
        assert state(events[0].task) == "INPUT_REQUIRED"
        (row,) = rig.service.approvals.rows(status="pending")
        rig.service.approvals.decide(row.id, decision="approve", digest=row.digest, by="somebody")
        await following
        assert state(assemble(events)) == "COMPLETED"


# Rights, lists and limits


async def test_each_method_needs_its_right_and_tasks_belong_to_their_caller(tmp_path):
    async with serving_a2a(tmp_path, asking(), make(name="second"), keys=True) as rig:
        runner, reader = rig.key("runner", "run"), rig.key("reader", "read")
        mine, approver = rig.key("mine", "run", "read"), rig.key("approver", "approve")
        async with rig.client(headers=mine) as client:
            task = await sent(client, message_request("clean up", context="talk"))
            with pytest.raises(InvalidRequestError, match="approve"):
                await sent(client, message_request("yes", task=task.id))
            assert (await client.list_tasks(ListTasksRequest(context_id="talk"))).total_size == 1
        async with rig.client(headers=reader) as client:
            with pytest.raises(InvalidRequestError, match="run"):
                await sent(client, message_request("hi"))
            with pytest.raises(InvalidRequestError, match="run"):
                await client.cancel_task(CancelTaskRequest(id=task.id))
            with pytest.raises(TaskNotFoundError):
                await got(client, task.id)
            assert (await client.list_tasks(ListTasksRequest())).total_size == 0
        async with rig.client(headers=runner) as client:
            with pytest.raises(InvalidRequestError, match="read"):
                await got(client, task.id)
            with pytest.raises(InvalidRequestError, match="read"):
                await anext(client.subscribe(SubscribeToTaskRequest(id=task.id)))
            with pytest.raises(TaskNotFoundError):
                await client.cancel_task(CancelTaskRequest(id=task.id))
        async with rig.client(headers=approver) as client:
            with pytest.raises(TaskNotFoundError):
                await sent(client, message_request("yes", task=task.id))
        boss = rig.key("boss", "approve", "admin")
        async with rig.client(headers=boss) as client:
            assert state(await sent(client, message_request("yes", task=task.id))) == "COMPLETED"
        async with rig.client("second", headers=mine) as client:
            with pytest.raises(TaskNotFoundError):
                await got(client, task.id)
            assert (await client.list_tasks(ListTasksRequest())).total_size == 0
        with pytest.raises(A2AClientError):
            async with rig.client("second"):
                pass


async def test_without_the_right_read_a_caller_sees_no_texts_of_others(tmp_path):
    blocker = Blocker()
    async with serving_a2a(tmp_path, asking(), blocker.agent(name="second"), keys=True) as rig:
        mine, decider = rig.key("mine", "run"), rig.key("decider", "approve", "admin")
        runner, receiver = rig.key("runner", "run", "admin"), {"url": "https://93.184.215.14/"}
        async with rig.client(headers=mine) as client:
            task = await sent(client, message_request("my secret"))
        for streaming in (False, True):
            async with rig.client(headers=decider) as client:
                client._config.streaming = streaming
                unclear = await stream_events(client, message_request("my own words", task=task.id))
                assert "my secret" not in str(unclear)
                assert "a.txt" in str(unclear)  # a caller that may decide has to see the waiting calls
        async with rig.client(headers=decider) as client:
            answer = await stream_events(client, message_request("yes", task=task.id))
            assert [each.WhichOneof("payload") for each in answer] == ["task"]
            assert "my secret" not in str(answer)
        async with rig.client("second", headers=mine) as client:
            task = await sent(client, message_request("my secret", now=True))
        await wait_until(lambda: blocker.entered)
        async with rig.client("second", headers=runner) as client:
            with pytest.raises(InvalidRequestError, match="read"):
                await client.create_task_push_notification_config(
                    TaskPushNotificationConfig(task_id=task.id, **receiver)
                )
            with pytest.raises(InvalidRequestError, match="read"):
                await sent(client, message_request("hello", task=task.id, task_push_notification_config=receiver))
            assert "my secret" not in str(await sent(client, message_request("hello", task=task.id, now=True)))
            assert "my secret" not in str(await client.cancel_task(CancelTaskRequest(id=task.id)))


async def test_a_missing_right_is_in_the_audit_log(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl")
    async with serving_a2a(tmp_path, keys=True, audit=audit) as rig:
        headers = rig.key("reader", "read") | VERSION
        refused = await rig.call("SendMessage", MessageToDict(message_request("hi")), headers=headers)
        assert refused["error"]["code"] == -32600
    audit.close()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["type"] == "auth"][-1]
    assert (last["decision"], last["right"], last["name"]) == ("denied", "run", "reader")


async def test_a_page_of_long_tasks_is_short_and_skips_none(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_runs, "PAGE_SIZE", 250)
    async with serving_a2a(tmp_path, make()) as rig, rig.client() as client:
        tasks = [await sent(client, message_request("x" * size)) for size in (10, 400, 100, 100, 400)]
        pages, token = [], ""
        while not pages or token:
            page = await client.list_tasks(ListTasksRequest(page_token=token))
            pages.append([task.id for task in page.tasks])
            token = page.next_page_token
        assert sum(pages, []) == [task.id for task in reversed(tasks)]
        assert [len(page) for page in pages] == [1, 2, 1, 1]


async def test_tasks_are_listed_in_pages_and_filtered(tmp_path):
    turns = [reply("one"), TimeoutError("no"), reply("three"), call("delete", path="x")]
    async with serving_a2a(tmp_path, asking(*turns)) as rig, rig.client() as client:
        tasks = [await sent(client, message_request(str(n), context="even" if n % 2 else "odd")) for n in range(4)]
        seen, token = [], ""
        for size in (3, 1):
            page = await client.list_tasks(ListTasksRequest(page_size=size, page_token=token))
            assert (page.total_size, page.page_size) == (4, size)
            seen += page.tasks
            token = page.next_page_token
        assert token == ""
        assert [task.id for task in seen] == [task.id for task in reversed(tasks)]
        assert [state(task) for task in seen] == ["INPUT_REQUIRED", "COMPLETED", "FAILED", "COMPLETED"]
        assert not any(task.artifacts for task in seen)

        async def listed(**wanted):
            return [task.id for task in (await client.list_tasks(ListTasksRequest(**wanted))).tasks]

        assert await listed(context_id="even") == [tasks[3].id, tasks[1].id]
        assert await listed(status=TaskState.TASK_STATE_FAILED) == [tasks[1].id]
        assert await listed(status=TaskState.TASK_STATE_AUTH_REQUIRED) == []
        assert await listed(status_timestamp_after=tasks[2].status.timestamp) == [tasks[3].id, tasks[2].id]
        whole = await client.list_tasks(ListTasksRequest(include_artifacts=True, status=TaskState.TASK_STATE_COMPLETED))
        assert [reply_of(task) for task in whole.tasks] == ["three", "one"]
        assert whole.tasks[0] == tasks[2]
        for wrong in ({"page_token": "nonsense"}, {"page_size": 0}, {"page_size": 101}, {"history_length": -1}):
            with pytest.raises(InvalidParamsError):
                await listed(**wrong)


async def test_exceeded_limits_are_errors_of_the_protocol(tmp_path):
    blocker = Blocker()
    async with serving_a2a(tmp_path, blocker.agent(), max_runs_per_caller=1) as rig, rig.client() as client:
        await sent(client, message_request("go", now=True))
        with pytest.raises(A2AError, match="limit"):
            await sent(client, message_request("go", now=True))
        with pytest.raises(InvalidParamsError):
            await sent(client, message_request("go", context="x" * 300))


async def test_the_error_names_a_started_task_that_cannot_be_followed(tmp_path):
    blocker = Blocker()
    async with serving_a2a(tmp_path, blocker.agent(), max_streams=1) as rig, rig.client() as client:
        first = await sent(client, message_request("go", now=True))
        reader = await rig.service.read(first.id, ADMIN)
        with pytest.raises(A2AError) as caught:
            await sent(client, message_request("go", now=True))
        reader.close()
        second, _ = await rig.service.list(ADMIN)
        assert second.id in str(caught.value)


async def test_a_given_permission_is_in_the_audit_log(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl")
    async with serving_a2a(tmp_path, asking(), push={"audit": audit}) as rig, rig.client() as client:
        task = await sent(client, message_request("clean up"))
        (asked,) = data_of(task.status.message)
        allow = {"decision": "approve", "digest": asked["digest"], "remember": "always"}
        assert state(await sent(client, message_request(data=allow, task=task.id))) == "COMPLETED"
    audit.close()
    (record,) = [each for each in (tmp_path / "audit.jsonl").read_text().splitlines() if '"grant"' in each]
    assert asked["approval"] in record
    assert "a local user" in record


async def test_a_decision_obeys_the_approval_policy(tmp_path):
    agent = asking(call("delete", path="a.txt"), reply("gone"))
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        rights = ApproverRights(can_approve=(CallPattern(),))
        rig.service.approvals.policy = ApprovalPolicy(people={"ann": rights, "ben": rights})
        first = await sent(client, message_request("clean up"))
        (asked,) = data_of(first.status.message)
        answer = {"approval": asked["approval"], "decision": "approve", "digest": asked["digest"]}
        task = await sent(client, message_request(data=answer, task=first.id))
        assert state(task) == "INPUT_REQUIRED"
        assert "is not in people of the approval policy" in text_of(task.status.message)
        assert rig.service.approvals.find(asked["approval"]).status == "pending"
