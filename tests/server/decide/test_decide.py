"""``POST /decide``: what callers are answered, and that nothing is allowed when something goes wrong."""

import asyncio

import pytest

from hookline import HookResult, Limits, guard, hook, observer
from hookline.backtest import backtest
from hookline.hooks import SpendingLimit
from hookline.points import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
)
from hookline.stores import SpendingStore, run_stats
from tests.server.decide.rig import agent_of, deciding, gather
from tests.waiting import wait_until

OWN = {"to": "ann@example.com"}


def events_of(page, *kinds):
    return [event for event in page["events"] if event["type"] in kinds]


async def told(caller, run_id):
    answer = await caller.client.get(f"/runs/{run_id}/events", headers={**caller.headers, "accept": "application/json"})
    return answer.json()


# Answers.


async def test_a_call_is_allowed_blocked_or_changed(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        allowed = await ann.call("send_mail", id="c1", **OWN)
        assert (allowed["action"], allowed["changed"]) == ("allow", False)
        assert allowed["payload"] == {"id": "c1", "name": "send_mail", "arguments": OWN}
        blocked = await ann.call("send_mail", to="rival@example.org")
        assert (blocked["action"], blocked["reason"], blocked["by"]) == (
            "block",
            "Mail goes to colleagues only.",
            "colleagues_only",
        )
        changed = await ann.call("convert", feet=3)
        assert (changed["action"], changed["changed"]) == ("allow", True)
        assert changed["payload"]["arguments"] == {"feet": 3, "unit": "m"}
        assert allowed["run"] == blocked["run"] == changed["run"]


async def test_an_answer_of_a_hook_takes_the_place_of_a_tool_and_of_a_model(tmp_path):
    @hook(BEFORE_TOOL)
    def today(ctx, request):
        return HookResult.answer({"day": 1}, reason="cached")

    @hook(BEFORE_LLM)
    def greet(ctx, request):
        return HookResult.answer("Hello.")

    @hook(AFTER_LLM)
    def sign(ctx, reply):
        return reply.replace(content=f"{reply.content} ({reply.source})")

    async with deciding(tmp_path, agent_of(today, greet, sign)) as server:
        ann = server.caller()
        answered = await ann.call("today")
        assert (answered["action"], answered["value"], answered["by"]) == ("answer", {"day": 1}, "today")
        answered = await ann.ask("before_llm", messages=[{"role": "user", "content": "Hi"}])
        assert answered["value"] == {"content": "Hello. (greet)", "tool_calls": []}


async def test_a_result_comes_back_as_the_hooks_changed_it(tmp_path):
    @hook(AFTER_TOOL)
    def redact(ctx, result):
        return result.with_text(result.text.replace("1234", "[card]"))

    async with deciding(tmp_path, agent_of(redact)) as server:
        ann = server.caller()
        await ann.call("read", id="c1")
        settled = await ann.result("c1", "read", "card 1234")
        assert (settled["action"], settled["changed"], settled["payload"]["result"]) == ("allow", True, "card [card]")
        await ann.call("read", id="c2")
        failed = await ann.result("c2", "read", error="1234 is wrong")
        assert (failed["payload"]["error"], failed["payload"]["result"]) == ("[card] is wrong", None)


async def test_the_result_of_a_call_that_was_never_asked_about_is_judged_too(tmp_path):
    @guard(AFTER_TOOL)
    def withhold(ctx, result):
        raise RuntimeError("a bug")

    async with deciding(tmp_path, agent_of(withhold)) as server:
        answer = await server.caller().result("c9", "read", "secret")
        assert (answer["action"], answer["by"]) == ("block", "withhold")
        assert "secret" not in str(answer)


async def test_a_reply_can_be_rejected_only_so_often(tmp_path):
    @guard(AFTER_LLM)
    def polite(ctx, reply):
        return HookResult.retry("Be polite.") if "idiot" in reply.content else None

    async with deciding(tmp_path, agent_of(polite)) as server:
        ann = server.caller()
        answers = []
        for _ in range(3):
            await ann.ask("before_llm", messages=[{"role": "user", "content": "Hi"}])
            answers.append(await ann.ask("after_llm", content="You idiot."))
        assert [each["action"] for each in answers] == ["retry", "retry", "stop"]
        assert (answers[0]["note"], answers[2]["kind"], answers[2]["payload"]) == ("Be polite.", "retry_limit", None)


async def test_a_task_and_the_system_prompt_come_back_as_the_hooks_changed_them(tmp_path):
    @hook(ON_RUN_START)
    def shorten(ctx, start):
        return start.replace(task=start.task[:4])

    @hook(BEFORE_PROMPT_BUILD)
    def rules(ctx, build):
        return HookResult.merge(append_system="Be brief.")

    async with deciding(tmp_path, agent_of(shorten, rules)) as server:
        begun = await server.caller().ask(
            "on_run_start", task="Mail it.", attachments=[{"data": "aGk=", "name": "a.txt", "media_type": "text/plain"}]
        )
        assert (begun["payload"]["task"], begun["changed"], begun["system_prompt"]) == ("Mail", True, "Be brief.")
        assert begun["payload"]["attachments"][0]["name"] == "a.txt"


async def test_a_hook_keeps_a_run_going_and_changes_its_reply(tmp_path):
    @hook(ON_STOP)
    def bye(ctx, stopping):
        return None if "Bye" in ctx.state.messages[-1].content else HookResult.keep_going("Say goodbye.")

    @hook(ON_RUN_END)
    def sign(ctx, result):
        return result.replace(reply=f"{result.reply} -- me")

    async with deciding(tmp_path, agent_of(bye, sign)) as server:
        ann = server.caller()
        run = (await ann.ask("on_run_start", task="Greet."))["run"]
        assert await ann.ask("on_run_end", reply="Hello.") == {
            "action": "keep_going",
            "run": run,
            "note": "Say goodbye.",
            "by": "",
        }
        assert (await ann.run(run))["status"] == "running"
        ended = await ann.ask("on_run_end", reply="Bye.")
        assert (ended["action"], ended["payload"], ended["changed"]) == ("allow", {"reply": "Bye. -- me"}, True)
        listed = await ann.run(run)
        assert (listed["status"], listed["reply"], listed["task"]) == ("completed", "Bye. -- me", "Greet.")


async def test_a_call_without_a_result_counts_as_cancelled_and_the_run_keeps_its_reply(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        await ann.call("read", id="c1")
        ended = await ann.ask("on_run_end", reply="Done.")
        assert ended["payload"] == {"reply": "Done."}
        assert (await ann.run(ended["run"]))["reply"] == "Done."
        (call,) = events_of(await told(ann, ended["run"]), "tool_ended")
        assert call["outcome"] == "cancelled"


async def test_a_program_reports_the_failure_of_its_run(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        failure = {"where": "framework", "type": "OSError", "message": "no space left"}
        ended = await ann.ask("on_run_end", reply="", errors=[failure])
        assert ended["action"] == "allow"
        listed = await ann.run(ended["run"])
        assert (listed["status"], listed["error"]) == ("failed", "ReportedError: no space left")


async def test_a_failed_model_call_is_made_again_as_often_as_in_a_run(tmp_path):
    @hook(ON_ERROR)
    def again(ctx, failure):
        return HookResult.retry(f"attempt {failure.attempt}")

    async with deciding(tmp_path, agent_of(again)) as server:
        ann, failure = server.caller(), {"where": "model", "type": "OverloadedError", "message": "later"}
        answers = []
        for _ in range(3):
            await ann.ask("before_llm")
            answers.append(await ann.ask("on_error", where="model", errors=[failure]))
        assert [each.get("note") or each["kind"] for each in answers] == ["attempt 1", "attempt 2", "retry_limit"]


async def test_a_result_is_wanted_again_as_often_as_in_a_run(tmp_path):
    @guard(AFTER_TOOL)
    def again(ctx, result):
        return HookResult.retry(f"attempt {result.attempt}")

    async with deciding(tmp_path, agent_of(again)) as server:
        ann, answers = server.caller(), []
        for _ in range(3):
            await ann.call("read", id="c1")
            answers.append(await ann.result("c1", "read", "text"))
        assert [each.get("note") or each["kind"] for each in answers] == ["attempt 1", "attempt 2", "retry_limit"]


async def test_a_tool_that_a_hook_withdrew_does_not_run_in_that_step(tmp_path):
    @hook(BEFORE_LLM)
    def no_mail(ctx, request):
        return request.replace(tools=[tool for tool in request.tools if tool.name != "send"])

    async with deciding(tmp_path, agent_of(no_mail)) as server:
        ann = server.caller()
        answer = await ann.ask("before_llm", tools=[{"name": "send"}, {"name": "read"}])
        assert [tool["name"] for tool in answer["payload"]["tools"]] == ["read"]
        assert (await ann.call("read"))["action"] == "allow"
        refused = await ann.call("send")
        assert (refused["action"], refused["reason"]) == ("block", "The tool 'send' is not available in this step.")


async def test_a_run_that_a_hook_ended_stays_ended_until_the_next_task(tmp_path):
    @guard(BEFORE_TOOL, tools="finish")
    def finish(ctx, request):
        return HookResult.end("Enough.")

    async with deciding(tmp_path, agent_of(finish)) as server:
        ann = server.caller()
        ended = await ann.call("finish")
        assert (ended["action"], ended["reply"], ended["by"]) == ("end", "Enough.", "finish")
        assert (await ann.run(ended["run"]))["status"] == "ended"
        assert (await ann.call("read"))["action"] == "end"
        assert (await ann.ask("before_llm"))["action"] == "end"
        begun = await ann.ask("on_run_start", task="Another.")
        assert begun["action"] == "allow"
        assert begun["run"] != ended["run"]
        assert (await ann.call("read"))["action"] == "allow"


async def test_a_stopped_run_allows_no_call_and_judges_results(tmp_path):
    @guard(BEFORE_STEP)
    def pause(ctx, step):
        return HookResult.stop("A pause is due.") if step.index else None

    async with deciding(tmp_path, agent_of(pause)) as server:
        ann = server.caller()
        await ann.call("read", id="c1")
        assert (await ann.ask("before_step", index=0))["action"] == "allow"
        stopped = await ann.ask("before_step", index=1)
        assert (stopped["action"], stopped["reason"], stopped["by"]) == ("stop", "A pause is due.", "pause")
        assert (await ann.call("write"))["action"] == "stop"
        assert (await ann.ask("before_llm"))["action"] == "stop"
        settled = await ann.result("c1", "read", "text")
        assert (settled["action"], settled["payload"]["result"]) == ("stop", "text")
        assert (await ann.ask("on_run_end", reply=""))["action"] == "allow"
        assert (await ann.run(stopped["run"]))["status"] == "stopped"


# Approvals.


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        ({"decision": "approve"}, ("allow", {"amount": 5})),
        ({"decision": "edit", "arguments": {"amount": 1}}, ("allow", {"amount": 1})),
        ({"decision": "deny", "message": "Too much."}, ("block", "Too much.")),
    ],
)
async def test_people_decide_about_a_call_as_in_every_run(tmp_path, decision, expected):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        asked = await ann.call("pay", amount=5)
        assert (asked["action"], asked["approval"]["questions"]) == ("ask", ["Pay 5?"])
        assert (await ann.run(asked["run"]))["status"] == "waiting"
        assert (await ann.get("/approvals"))["approvals"][0]["run_id"] == asked["run"]
        assert (await ann.again(asked, wait=0))["action"] == "ask"
        answer, _ = await gather(ann.again(asked), ann.decide(asked, **decision))
        assert (answer["action"], answer.get("reason") or answer["payload"]["arguments"]) == expected
        assert await ann.again(asked) == answer
        assert (await ann.run(asked["run"]))["status"] == "running"


async def test_an_edited_call_is_judged_again(tmp_path):
    @guard(BEFORE_TOOL, tools="pay")
    def at_most_ten(ctx, request):
        return HookResult.block("At most 10.") if request.arguments["amount"] > 10 else HookResult.ask("Pay?")

    async with deciding(tmp_path, agent_of(at_most_ten)) as server:
        ann = server.caller()
        asked = await ann.call("pay", amount=5)
        await ann.decide(asked, "edit", arguments={"amount": 50})
        answer = await ann.again(asked)
        assert (answer["action"], answer["reason"]) == ("block", "At most 10.")


async def test_a_question_waits_for_people_as_long_as_the_caller_says(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()

        async def approve():
            await wait_until(lambda: server.service.approvals.rows(status="pending"))
            (row,) = server.service.approvals.rows(status="pending")
            server.service.approvals.decide(row.id, decision="approve", digest=row.digest, by="ben")

        answer, _ = await gather(ann.call("pay", amount=5, wait=60), approve())
        assert answer["action"] == "allow"


async def test_a_call_that_nobody_approves_in_time_is_blocked(tmp_path):
    async with deciding(tmp_path, approval_seconds=0.05) as server:
        answer = await server.caller().call("pay", amount=5, wait=60)
        assert (answer["action"], answer["by"]) == ("block", "expired")


async def test_the_time_of_people_is_not_the_time_of_hooks(tmp_path):
    async with deciding(tmp_path, decide_seconds=0.2) as server:
        ann = server.caller()
        asked = await ann.call("pay", amount=5)
        await asyncio.sleep(0.3)
        await ann.decide(asked)
        assert (await ann.again(asked))["action"] == "allow"


async def test_only_the_caller_gets_the_answer_to_its_question(tmp_path):
    async with deciding(tmp_path) as server:
        asked = await server.caller().call("pay", amount=5)
        ben = server.caller("ben")
        found = await ben.client.get(f"/decide/{asked['decision']}", headers=ben.headers)
        assert (found.status_code, found.json()["error"]["code"]) == (404, "unknown_decision")


# Nothing is allowed when something goes wrong.


async def test_a_failing_hook_blocks_and_its_error_stays_in_the_log(tmp_path):
    @guard(BEFORE_TOOL)
    def broken(ctx, request):
        raise RuntimeError("the password is 1234")

    async with deciding(tmp_path, agent_of(broken)) as server:
        answer = await server.caller().call("read")
        assert (answer["action"], answer["reason"], answer["by"]) == ("block", "Hook 'broken' failed.", "broken")


@pytest.mark.parametrize("point", [BEFORE_LLM, AFTER_LLM, BEFORE_STEP, AFTER_TOOL, ON_RUN_START, ON_RUN_END])
async def test_a_failing_hook_blocks_at_every_point(tmp_path, point):
    @guard(point)
    def broken(ctx, payload):
        raise RuntimeError("a bug")

    payloads = {
        BEFORE_LLM: {},
        AFTER_LLM: {"content": "x"},
        BEFORE_STEP: {"index": 0},
        AFTER_TOOL: {"id": "c1", "name": "read", "result": "x"},
        ON_RUN_START: {"task": "x"},
        ON_RUN_END: {"reply": "x"},
    }
    async with deciding(tmp_path, agent_of(broken)) as server:
        ann = server.caller()
        answer = await ann.ask(str(point), **payloads[point])
        assert answer["action"] == "block"
        assert "broken" in answer["reason"]
        if point == ON_RUN_START:
            assert (await ann.call("read"))["action"] == "block"
            assert (await ann.run(answer["run"]))["status"] == "failed"


async def test_hooks_that_hang_are_interrupted_and_the_call_is_blocked(tmp_path):
    @guard(BEFORE_TOOL, tools="hang")
    async def hang(ctx, request):
        await asyncio.Event().wait()

    async with deciding(tmp_path, agent_of(hang), decide_seconds=0.05) as server:
        ann = server.caller()
        answer = await ann.call("hang")
        assert (answer["action"], answer["reason"]) == ("block", "The hooks did not answer within 0.05 s.")
        assert (await ann.call("read"))["action"] == "allow"


async def test_hooks_that_hang_at_the_start_of_a_run_are_an_error(tmp_path):
    @guard(ON_RUN_START)
    async def hang(ctx, start):
        await asyncio.Event().wait()

    async with deciding(tmp_path, agent_of(hang), decide_seconds=0.05) as server:
        ann = server.caller()
        answer = await ann.post(point="on_run_start", session="chat", payload={"task": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


async def test_a_server_that_stops_answers_open_questions_with_a_stop(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        question = asyncio.create_task(ann.call("pay", amount=5, wait=60))
        await wait_until(lambda: server.service.approvals.rows(status="pending"))
        await server.service.close(grace=0)
        assert (await question)["action"] == "stop"
        refused = await ann.post(point="before_tool", session="other", payload={"id": "c1", "name": "read"})
        assert refused.status_code == 503


async def test_after_a_restart_a_caller_is_not_allowed_to_go_on_in_its_run(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        run = (await ann.ask("on_run_start", task="Mail it."))["run"]
        asked = await ann.call("pay", amount=5)
    async with deciding(tmp_path) as server:
        ann = server.caller()
        assert (await ann.run(run))["status"] == "interrupted"
        refused = await ann.post(point="before_tool", session="chat", run=run, payload={"id": "c1", "name": "read"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_now")
        lost = await ann.client.get(f"/decide/{asked['decision']}", headers=ann.headers)
        assert lost.status_code == 404
        assert (await ann.call("read"))["run"] != run


async def test_an_operator_cancels_a_run_and_its_caller_may_not_go_on(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        question = asyncio.create_task(ann.call("pay", amount=5, wait=60))
        await wait_until(lambda: server.service.approvals.rows(status="pending"))
        (run,) = (await ann.get("/runs"))["runs"]
        await ann.post(f"/runs/{run['id']}/cancel", reason="too slow")
        assert (await question)["reason"] == "too slow"
        later = await ann.call("read")
        assert (later["action"], later["reason"]) == ("stop", "too slow")
        assert (await ann.run(run["id"]))["status"] == "cancelled"


async def test_the_stop_switch_stops_the_runs_of_callers(tmp_path):
    async with deciding(tmp_path) as server:
        ann, root = server.caller(), server.caller("root")
        await ann.call("read")
        await root.post("/halt", reason="it charges twice")
        await asyncio.sleep(1.2)  # the switch is read each second
        stopped = await ann.call("read")
        assert (stopped["action"], stopped["kind"]) == ("stop", "halted")
        assert "it charges twice" in stopped["reason"]
        refused = await ann.post(point="before_tool", session="new", payload={"id": "c1", "name": "read"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "halted")


# Requests.


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"point": "before_tol", "session": "s", "payload": {}}, "Did you mean 'before_tool'?"),
        ({"point": "on_progress", "session": "s", "payload": {}}, "point: invalid value 'on_progress'"),
        ({"session": "s", "payload": {}}, "the field point is missing"),
        ({"point": "before_tool", "payload": {"id": "c", "name": "x"}}, "the field session is missing"),
        ({"point": "before_tool", "session": "s", "payload": {"id": "c"}}, "the field payload.name is missing"),
        (
            {"point": "before_tool", "session": "s", "payload": {"id": "c", "name": "x", "argments": {}}},
            "there is no field payload.argments",
        ),
        (
            {"point": "before_tool", "session": "s", "payload": {"id": "c", "name": "x", "ids": {}}},
            "there is no field payload.ids",
        ),
        (
            {"point": "before_tool", "session": "s", "payload": {"id": "c", "name": "x", "arguments": "text"}},
            "payload.arguments: expected `object`, got `str`",
        ),
        (
            {"point": "before_llm", "session": "s", "payload": {"messages": [{"role": "user", "text": "x"}]}},
            "there is no field payload.messages[0].text",
        ),
        ({"point": "on_run_end", "session": "", "payload": {"reply": "x"}}, "session: expected `str` of length >= 1"),
        ({"point": "before_tool", "session": "s", "metadata": {}, "payload": {}}, "metadata cannot be sent"),
    ],
)
async def test_a_question_that_is_not_understood_is_an_error_that_says_why(tmp_path, body, message):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        answer = await ann.post(**body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_field")
        assert message in answer.json()["error"]["message"]
        assert (await ann.get("/runs"))["runs"] == []


async def test_json_that_is_nested_too_deep_is_an_error(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        deep = "[" * 300 + "]" * 300
        body = f'{{"point":"before_tool","session":"s","payload":{{"id":"c","name":"x","arguments":{{"a":{deep}}}}}}}'
        headers = {**ann.headers, "content-type": "application/json"}
        answer = await ann.client.post("/decide", content=body, headers=headers)
        assert answer.status_code == 422


async def test_a_question_that_is_sent_again_is_judged_once(tmp_path):
    judged = []

    @guard(BEFORE_TOOL)
    async def note(ctx, request):
        judged.append(request.id)
        await asyncio.sleep(0.01)

    async with deciding(tmp_path, agent_of(note)) as server:
        ann = server.caller()
        body = {"point": "before_tool", "session": "chat", "payload": {"id": "c1", "name": "read"}}
        headers = {**ann.headers, "idempotency-key": "one"}
        answers = await gather(*(ann.client.post("/decide", json=body, headers=headers) for _ in range(3)))
        assert len({each.text for each in answers}) == 1
        assert judged == ["c1"]
        other = await ann.client.post("/decide", json=body | {"session": "new"}, headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "other_request")
        assert (await server.caller("ben").call("read"))["action"] == "allow"


async def test_questions_need_the_right_to_run(tmp_path):
    async with deciding(tmp_path) as server:
        nobody = server.caller("eve")
        answer = await nobody.post(point="before_tool", session="s", payload={"id": "c1", "name": "read"})
        assert answer.status_code == 403


async def test_questions_have_a_rate_limit_of_their_own(tmp_path):
    async with deciding(tmp_path, rate=0.001, burst=1, decide_rate=0.001, decide_burst=2) as server:
        ann = server.caller()
        body = {"point": "before_tool", "session": "s", "payload": {"id": "c1", "name": "read"}}
        assert [(await ann.post(**body)).status_code for _ in range(3)] == [200, 200, 429]
        assert (await ann.get("/runs"))["runs"]


async def test_a_caller_has_only_so_many_sessions(tmp_path):
    async with deciding(tmp_path, max_sessions_per_caller=2, max_sessions=3) as server:
        body = {"point": "before_tool", "payload": {"id": "c1", "name": "read"}}
        ann, ben = server.caller(), server.caller("ben")
        assert [(await ann.post(session=name, **body)).status_code for name in "aba"] == [200, 200, 200]
        refused = await ann.post(session="c", **body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
        assert [(await ben.post(session=name, **body)).status_code for name in "ab"] == [200, 429]
        await ann.post(point="on_run_end", session="a", payload={"reply": ""})
        assert (await ann.post(session="c", **body)).status_code == 200


async def test_runs_that_callers_execute_take_no_place_of_those_that_the_server_executes(tmp_path):
    async with deciding(tmp_path, max_runs=1, max_runs_per_caller=1, max_queued=0) as server:
        ann = server.caller()
        await ann.call("read")
        answer = await ann.post("/runs", task="Hello.", wait=30)
        assert (answer.status_code, answer.json()["status"]) == (201, "completed")


async def test_a_session_that_nobody_uses_ends_its_run(tmp_path):
    async with deciding(tmp_path, session_seconds=0.001) as server:
        ann = server.caller()
        run = (await ann.call("read"))["run"]
        (sessions,) = [each._sessions for each in server.app.server.apis if type(each).__name__ == "DecideApi"]
        await asyncio.sleep(0.01)
        await sessions.sweep()
        assert (await ann.run(run))["status"] == "completed"
        assert (await ann.call("read"))["run"] != run


# Sessions.


async def test_callers_and_agents_have_sessions_of_their_own(tmp_path):
    async with deciding(tmp_path, agent_of(name="one"), agent_of(name="two")) as server:
        ann, ben = server.caller(), server.caller("ben")
        runs = [(await ann.call("read"))["run"], (await ben.call("read"))["run"]]
        runs.append((await ann.ask("before_tool", id="c1", name="read", agent="two"))["run"])
        assert len(set(runs)) == 3
        unknown = await ann.post(point="before_tool", session="s", agent="three", payload={"id": "c1", "name": "x"})
        assert unknown.status_code == 404


async def test_hooks_remember_what_happened_in_a_session(tmp_path):
    @guard(BEFORE_TOOL, tools="send")
    def nothing_after_secrets(ctx, request):
        read = any(message.role == "tool" and "secret" in message.content for message in ctx.state.messages)
        return HookResult.block("You have read a secret.") if read else None

    async with deciding(tmp_path, agent_of(nothing_after_secrets)) as server:
        ann = server.caller()
        await ann.ask("on_run_start", task="Read it.")
        await ann.call("read", id="c1")
        await ann.result("c1", "read", "a secret")
        assert (await ann.call("send"))["action"] == "block"
        await ann.ask("on_run_end", reply="I have read it.")
        await ann.ask("on_run_start", task="Send it.")
        assert (await ann.call("send"))["action"] == "block"
        assert (await server.caller(session="other").call("send"))["action"] == "allow"


async def test_calls_of_one_session_are_judged_side_by_side(tmp_path):
    both = asyncio.Barrier(2)

    @guard(BEFORE_TOOL)
    async def meet(ctx, request):
        await both.wait()

    async with deciding(tmp_path, agent_of(meet)) as server:
        ann = server.caller()
        answers = await gather(ann.call("read"), ann.call("write"))
        assert [each["action"] for each in answers] == ["allow", "allow"]


async def test_a_new_task_ends_the_run_before_it(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        first = (await ann.ask("on_run_start", task="One."))["run"]
        second = (await ann.ask("on_run_start", task="Two."))["run"]
        assert ((await ann.run(first))["status"], (await ann.run(second))["status"]) == ("completed", "running")


async def test_hooks_see_the_caller_and_the_tools_that_it_declares(tmp_path):
    seen = []

    @observer(BEFORE_TOOL)
    def look(ctx, request):
        seen.append((ctx.state.metadata["caller_id"], ctx.state.metadata["platform"], ctx.tool_registry.get("read")))

    async with deciding(tmp_path, agent_of(look)) as server:
        ann = server.caller()
        await ann.ask("before_llm", tools=[{"name": "read", "description": "Read a file."}])
        await ann.call("read")
        ((caller, platform, tool),) = seen
        assert (caller, platform, tool.spec.description) == ("ann", "decide", "Read a file.")


# Limits, spending, records.


async def test_limits_of_the_agent_hold(tmp_path):
    limits = Limits(steps=2, tokens=100, tool_calls=1)
    async with deciding(tmp_path, agent_of(limits=limits)) as server:
        calls = server.caller(session="calls")
        await calls.call("read", id="c1")
        await calls.result("c1", "read", "text")
        assert (await calls.call("read"))["kind"] == "tool_calls_limit"
        steps = server.caller(session="steps")
        for _ in range(2):
            assert (await steps.ask("before_llm"))["action"] == "allow"
            await steps.ask("after_llm", content="x")
        assert (await steps.ask("before_llm"))["kind"] == "steps_limit"
        tokens = server.caller(session="tokens")
        await tokens.ask("before_llm")
        await tokens.ask("after_llm", content="x", usage={"input_tokens": 90, "output_tokens": 20})
        stopped = await tokens.call("read")
        assert (stopped["action"], stopped["kind"]) == ("stop", "token_limit")


async def test_what_callers_spend_counts(tmp_path):
    limit = SpendingLimit(0.05, store=SpendingStore(tmp_path / "spending.db"), max_reply_tokens=20, reserve_usd=0.01)
    async with deciding(tmp_path, agent_of(limit)) as server:
        ann = server.caller()
        for _ in range(2):
            assert (await ann.ask("before_llm", messages=[{"role": "user", "content": "x"}]))["action"] == "allow"
            await ann.ask("after_llm", content="x", usage={"input_tokens": 5, "output_tokens": 5}, cost=0.03)
        stopped = await ann.ask("before_llm", messages=[{"role": "user", "content": "x"}])
        assert (stopped["action"], stopped["kind"]) == ("stop", "cost_limit")
        await ann.ask("on_run_end", reply="")
        assert (await ann.run(stopped["run"]))["cost"] == pytest.approx(0.06)


async def test_every_place_tells_the_same_story(tmp_path):
    @guard(BEFORE_TOOL, tools="send")
    def never(ctx, request):
        return HookResult.block("Never.")

    audit, records = tmp_path / "audit.jsonl", tmp_path / "records"
    agent = agent_of(never, record=records)
    async with deciding(tmp_path, agent, settings={"audit": str(audit)}) as server:
        ann, root = server.caller(), server.caller("root")
        run = (await ann.ask("on_run_start", task="Send it."))["run"]
        await ann.ask("before_llm", messages=[{"role": "user", "content": "Send it."}], model="a-model")
        await ann.ask("after_llm", tool_calls=[{"id": "c1", "name": "send"}], usage={"input_tokens": 7})
        await ann.call("send", id="c1")
        await ann.call("read", id="c2")
        await ann.result("c2", "read", "text")
        await ann.ask("on_run_end", reply="I may not.")
        listed = await ann.run(run)
        assert (listed["origin"], listed["transport"], listed["session"]) == ("server", "decide", "chat")
        assert (listed["tool_calls"], listed["input_tokens"], listed["steps"]) == (2, 7, 1)
        ended = events_of(await told(ann, run), "tool_ended")
        assert [(each["tool"], each["outcome"]) for each in ended] == [("send", "blocked"), ("read", "ok")]
        await server.service.stored()
        (refused,) = run_stats(server.service.store).refusals
        assert (refused.hook, refused.tool, refused.reason) == ("never", "send", "Never.")
        verdicts = (await ann.get(f"/runs/{run}/verdicts"))["verdicts"]
        assert [(each["hook"], each["verb"]) for each in verdicts] == [("never", "block")]
        page = (await root.client.get(f"/console/runs/{run}", headers=root.headers)).text
        assert "never" in page
        assert "Never." in page
        explained = await root.client.get(f"/runs/{run}/explain", headers=root.headers)
        assert "Never." in explained.text
    report = await asyncio.to_thread(backtest, [never], [records])
    assert [(cell.hook, cell.kind) for cell in report.cells if cell.hook] == [("never", "same")]
