"""Approvals that are decided in the conversation of the call."""

import asyncio
import re
import time

import pytest

from hookline import call, hook
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.protocol import Capabilities, UndeliverableError
from hookline.hooks import AuditLogHook, SensitiveDataHook
from hookline.stores import ApprovalPolicy, ApproverRights, CallPattern

from ..waiting import wait_until
from .approval_setup import ApprovalSetup
from .helpers import crash


async def test_an_approval_with_the_code_runs_exactly_that_call(tmp_path):
    log = AuditLogHook(tmp_path / "audit.jsonl")
    async with ApprovalSetup(tmp_path, hooks=[log]) as setup:
        await setup.say("write notes/a.txt", message_id="m1")
        (code,) = await setup.wait_for_requests()
        (question,) = setup.channel.texts()
        assert '{"path": "notes/a.txt", "text": ""}' in question
        assert "PlanModeHook asks: May write run?" in question
        assert f"/approve {code}" in question
        (row,) = setup.store.rows(status="pending", owner="channel:memory")
        assert (row.tool, row.arguments, row.correlation_id) == ("write", {"path": "notes/a.txt", "text": ""}, "m1")
        assert row.root_id == row.run_id
        assert setup.wrote == []
        await setup.say(f"/approve {code.lower()}")
        await setup.wait_for_text("The tool said: wrote notes/a.txt")
        assert setup.channel.texts()[1:] == [f"{code}: approved. write runs.", "The tool said: wrote notes/a.txt"]
        assert setup.wrote == [("notes/a.txt", "")]
        assert setup.store.find(row.id).by == "memory:ada"
    assert log.flush(10)
    audit = (tmp_path / "audit.jsonl").read_text()
    assert '"by":"memory:ada"' in audit
    assert f'"digest":"{row.digest}"' in audit


async def test_a_denied_call_does_not_run_and_the_model_gets_the_reason(tmp_path):
    async with ApprovalSetup(tmp_path) as setup:
        await setup.say("write a")
        (code,) = await setup.wait_for_requests()
        await setup.say(f"/deny {code} use the other file")
        assert "use the other file" in await setup.wait_for_text("The tool said")
        assert setup.wrote == []


async def test_the_reason_of_a_denial_is_stored_without_secrets(tmp_path):
    async with ApprovalSetup(tmp_path, hooks=[SensitiveDataHook()]) as setup:
        await setup.say("write a")
        (code,) = await setup.wait_for_requests()
        await setup.say(f"/deny {code} ask ann@example.org first")
        assert "ask [email] first" in await setup.wait_for_text("The tool said")
        stored = b"".join(file.read_bytes() for file in tmp_path.glob("approvals.db*"))  # with the write-ahead log
        assert b"ann@example.org" not in stored


async def test_an_edit_runs_with_other_arguments(tmp_path):
    async with ApprovalSetup(tmp_path) as setup:
        await setup.say("write a")
        (code,) = await setup.wait_for_requests()
        await setup.say(f"/edit {code} [1]")
        assert "as JSON" in await setup.wait_for_text("Nothing was decided")
        await setup.say(f'/edit {code} {{"path": "b", "text": "hello there"}}')
        await setup.wait_for_text("The tool said: wrote b")
        assert setup.wrote == [("b", "hello there")]


@pytest.mark.parametrize(("word", "wrote"), [("yes", [("a", "")]), ("Yes!", [("a", "")]), ("no", []), ("N.", [])])
async def test_a_plain_answer_is_enough_if_one_call_is_pending(tmp_path, word, wrote):
    async with ApprovalSetup(tmp_path, when_busy="steer") as setup:
        await setup.say("write a")
        await setup.wait_for_requests()
        await setup.say(word)
        await setup.wait_for_text("The tool said")
        assert setup.wrote == wrote
        await setup.say("yes")
        await setup.wait_for_text("echo yes")


async def test_a_plain_yes_decides_nothing_if_two_calls_are_pending(tmp_path):
    async with ApprovalSetup(tmp_path) as setup:
        await setup.say("write a b")
        codes = await setup.wait_for_requests(2)
        paths = {code: row.arguments["path"] for code in codes for row in setup.store.rows() if row.arguments["path"]}
        assert len(set(codes)) == len(paths) == 2
        await setup.say("yes")
        told = await setup.wait_for_text("2 calls are waiting")
        assert all(f"/approve {code}" in told for code in codes)
        await setup.say("/approve")
        await wait_until(lambda: sum("2 calls are waiting" in text for text in setup.channel.texts()) == 2)
        assert setup.wrote == []
        await setup.say("/approvals")
        listed = await setup.wait_for_text(f"{codes[0]}: write {{")
        assert f"{codes[1]}: write {{" in listed
        second = next(text for text in setup.channel.texts() if text.startswith(f"{codes[1]}: bot wants"))
        await setup.say(f"/deny {codes[0]}")
        await setup.wait_for_text(f"{codes[0]}: denied")
        await setup.say("yes")
        await setup.wait_for_text(f"{codes[1]}: approved")
        await setup.wait_for_text("The tool said")
        assert [path for path, _ in setup.wrote] == re.findall(r'"path": "(\w)"', second)


async def test_a_sender_who_may_not_approve_cannot_decide(tmp_path):
    async with ApprovalSetup(tmp_path) as setup:
        await setup.say("write a", direct=False)
        (code,) = await setup.wait_for_requests()
        for command in (f"/approve {code}", f"/deny {code}", f"/edit {code} {{}}", "/approve nonsense"):
            await setup.say(command, sender="bob", direct=False)
        await wait_until(lambda: setup.channel.texts().count("You are not allowed to decide about calls here.") == 4)
        await setup.say("yes", sender="bob", direct=False)
        await setup.say("yes", sender="", direct=False)
        assert setup.store.pending_count() == 1
        await setup.say(f"/approve {code}", direct=False)
        await wait_until(lambda: setup.channel.texts().count("echo yes") == 2)
        assert setup.wrote == [("a", "")]


async def test_a_code_is_valid_only_in_its_own_conversation(tmp_path):
    async with ApprovalSetup(tmp_path) as setup:
        await setup.say("write a", chat="one")
        await setup.say("write b", chat="two")
        (one,), (two,) = await setup.wait_for_requests(chat="one"), await setup.wait_for_requests(chat="two")
        await setup.say(f"/approve {one}", chat="two")
        assert f"/approve {two}" in await setup.wait_for_text("There is no such code here.", chat="two")
        await setup.say(f"/approve {one}", chat="three")
        await setup.wait_for_text("There is no such code. No call is waiting for approval here.", chat="three")
        await setup.say("yes", chat="three")
        await setup.wait_for_text("echo yes", chat="three")
        assert setup.wrote == []
        assert setup.store.pending_count() == 2


async def test_the_request_refers_to_an_operator_if_nobody_may_approve(tmp_path):
    async with ApprovalSetup(tmp_path, approve=()) as setup:
        await setup.say("write secret/plans", chat="direct")
        await setup.say("write secret/plans", chat="group", direct=False)
        await setup.wait_for_requests(chat="direct")
        await setup.wait_for_requests(chat="group")
        assert "secret/plans" in setup.channel.texts("direct")[0]
        for chat in ("direct", "group"):
            assert "An operator must approve it" in setup.channel.texts(chat)[0]
            assert "/approve" not in setup.channel.texts(chat)[0]
        await setup.say("/approvals", chat="group", direct=False)
        await wait_until(lambda: len(setup.channel.texts("group")) == 2)
        assert not any("secret" in text for text in setup.channel.texts("group"))
        for row in setup.store.rows(status="pending"):
            setup.store.decide(row.id, decision="approve", digest=row.digest, by="root@terminal")
        for chat in ("direct", "group"):
            assert await setup.wait_for_text("(approved by root@terminal)", chat)
            await setup.wait_for_text("The tool said", chat)
            assert "approved by" in setup.channel.texts(chat)[-2]


async def test_an_approver_cannot_decide_in_the_direct_chat_of_another_sender(tmp_path):
    async with ApprovalSetup(tmp_path) as setup:
        await setup.say("write a", sender="bob")
        await setup.wait_for_requests()
        assert "An operator must approve it" in setup.channel.texts()[0]


async def test_calls_allowed_for_the_session_or_permanently_are_not_requested_again(tmp_path):
    async with ApprovalSetup(tmp_path, approve=("ada", "*")) as setup:
        await setup.say("write notes/a")
        (code,) = await setup.wait_for_requests()
        await setup.say(f"/approve {code} forever")
        await setup.wait_for_text("Nothing was decided. Write /approve CODE")
        await setup.say(f"/approve {code} session path=notes/*")
        await setup.wait_for_text("That pattern does not cover this call")
        await setup.say(f"/approve {code} session path=notes/* *=*")
        await setup.wait_for_text("The tool said")
        await setup.say("write notes/b")
        await wait_until(lambda: len(setup.wrote) == 2)
        await setup.say("write notes/c", chat="other", sender="bob")
        (code,) = await setup.wait_for_requests(chat="other")
        await setup.say(f"/approve {code} always path=notes/* text=*", chat="other", sender="bob")
        await setup.wait_for_text("You may not approve calls permanently", "other")
        await setup.say(f"/approve {code} always path=notes/* text=*", chat="other", sender="ada")
        await setup.wait_for_text("The tool said", "other")
        await setup.say("write notes/d", chat="third", sender="bob")
        await setup.wait_for_text("The tool said", "third")
        assert [(grant.scope, grant.by) for grant in setup.store.grants(owner="channel:memory")] == [
            ("always", "memory:ada"),
            ("session", "memory:ada"),
        ]


async def test_a_decision_made_elsewhere_wins_and_a_later_answer_here_is_out_of_date(tmp_path, monkeypatch):
    async with ApprovalSetup(tmp_path) as setup:
        find = setup.store.find
        monkeypatch.setattr(setup.store, "find", lambda id: (time.sleep(0.2), find(id))[1])  # events stay in order
        await setup.say("write a")
        (code,) = await setup.wait_for_requests()
        (row,) = setup.store.rows()
        setup.store.decide(row.id, decision="deny", digest=row.digest, by="api:ops", message="not today")
        told = await setup.wait_for_text("The tool said")
        assert "not today" in told
        assert setup.channel.texts()[1] == f"{code}: write does not run (denied by api:ops: not today)."
        await setup.say(f"/approve {code}")
        await setup.wait_for_text(f"{code} is out of date")
        assert setup.wrote == []


async def test_a_call_without_an_answer_is_denied_after_the_time_limit(tmp_path):
    async with ApprovalSetup(tmp_path, approval_seconds=0.3) as setup:
        await setup.say("write a")
        (code,) = await setup.wait_for_requests()
        await setup.wait_for_text("The tool said: Nobody approved")
        assert f"{code}: write does not run: it was not approved in time." in setup.channel.texts()
        assert setup.wrote == []
        assert setup.store.rows()[0].status == "expired"


async def test_an_ambiguous_yes_after_a_decision_elsewhere_decides_nothing(tmp_path):
    async with ApprovalSetup(tmp_path) as setup:
        await setup.say("write a")
        await setup.wait_for_requests()
        (row,) = setup.store.rows(status="pending")
        setup.store.decide(row.id, decision="deny", digest=row.digest, by="api:ops")
        await setup.wait_for_text("The tool said")
        await setup.say("write b")
        codes = await setup.wait_for_requests(2)
        await setup.say("yes")
        await setup.wait_for_text(f"write /approve {codes[-1]}.")
        assert setup.wrote == []
        await setup.say(f"/approve {codes[-1]}")
        await setup.wait_for_text("The tool said: wrote b")


async def test_stop_ends_a_pending_approval(tmp_path):
    async with ApprovalSetup(tmp_path) as setup:
        await setup.say("write a")
        (code,) = await setup.wait_for_requests()
        await setup.say("/stop")
        await setup.wait_for_text("Stopped.")
        await setup.wait_for_text(f"{code}: write no longer needs approval: its run has ended.")
        assert setup.store.rows()[0].status == "cancelled"
        await setup.say(f"/approve {code}")
        await setup.wait_for_text(f"{code} is out of date")
        await setup.say("hello")
        await setup.wait_for_text("echo hello")
        assert setup.wrote == []


async def test_a_run_that_waits_for_approval_frees_its_slot(tmp_path):
    async with ApprovalSetup(tmp_path, max_concurrent=1) as setup:
        for chat in ("one", "two"):
            await setup.say("write a", chat=chat)
            await setup.wait_for_requests(chat=chat)
        await setup.say("hello", chat="three")
        await setup.wait_for_text("echo hello", "three")
        for chat in ("one", "two"):
            await setup.say("yes", chat=chat)
            await setup.wait_for_text("The tool said", chat)
        await setup.gateway.wait_until_idle()
        await wait_until(lambda: not setup.gateway._runner._tasks)
        assert setup.gateway._runner.queues._slots._value == 1


async def test_a_restart_leads_to_a_new_request_and_invalidates_the_old_code(tmp_path):
    async with ApprovalSetup(tmp_path, grace=600) as first:
        await first.say("write a", message_id="m1")
        (old,) = await first.wait_for_requests()
        async with asyncio.timeout(60):  # the grace period must not apply: nobody can answer any more
            await first.gateway.stop()
        assert first.store.rows()[0].status == "cancelled"
        assert f"{old}: this request is out of date" in first.channel.texts()[-1]
    async with ApprovalSetup(tmp_path) as second:
        (code,) = await second.wait_for_requests()
        assert code != old
        await second.say(f"/approve {old}")
        assert code in await second.wait_for_text(f"{old} is out of date: nothing was decided. 1 call is waiting")
        assert second.wrote == []
        await second.say(f"/approve {code}")
        await second.wait_for_text("The tool said: wrote a")
        assert [row.status for row in second.store.rows()] == ["approved", "cancelled"]


async def test_a_request_after_a_crash_names_the_invalid_code(tmp_path):
    first = ApprovalSetup(tmp_path)
    await first.gateway.start()
    await first.say("write a", message_id="m1")
    (old,) = await first.wait_for_requests()
    gateway = first.gateway
    await gateway._mailbox.transact(lambda db: db.execute("DELETE FROM programs"))
    await crash(gateway)
    async with ApprovalSetup(tmp_path) as second:
        (code,) = [code for code in await second.wait_for_requests() if code != old]
        assert f"I am asking again. {old} is out of date." in second.channel.texts()[0]
        await second.say(f"/approve {code}")
        await second.wait_for_text("The tool said: wrote a")
    await gateway._approvals.close()


async def test_a_plain_yes_from_before_a_restart_decides_nothing(tmp_path):
    async with ApprovalSetup(tmp_path) as first:
        await first.say("write a", message_id="m1")
        await first.wait_for_requests()
        first.gateway._inbox.queues.pause()
        await first.say("yes", message_id="m2")
    later = asyncio.Event()

    @hook("inbound_claim")
    async def hold(ctx, inbound):
        if inbound.message.text == "yes":
            await later.wait()

    async with ApprovalSetup(tmp_path, hooks=[hold]) as second:
        (code,) = await second.wait_for_requests()
        later.set()
        await second.say(f"/deny {code}")
        await second.wait_for_text("echo yes")
        assert second.wrote == []


async def test_long_arguments_are_shown_completely_before_a_yes_counts(tmp_path):
    limit = 300
    text = "".join(f"{number} and  two spaces; " for number in range(90))
    channel = MemoryChannel(capabilities=Capabilities(max_length=limit))
    turns = [lambda request: call("write", path="a", text=text) if len(request.messages) == 1 else "done"]
    async with ApprovalSetup(tmp_path, channel=channel, turns=turns) as setup:
        await setup.say("go")
        await setup.wait_for_text("/approve")
        sent = setup.channel.texts()
        assert all(len(part) <= limit for part in sent)
        blocks = [part.split("```\n")[1].removesuffix("\n```") for part in sent if "```" in part]
        blocks = [block.removesuffix("```").rstrip("\n") for block in blocks]
        assert text in "".join(blocks).replace("\\u0020", " ")
        await setup.say("yes")
        await setup.wait_for_text("done")
        assert setup.wrote == [("a", text)]


async def test_a_call_that_was_not_shown_completely_cannot_be_approved(tmp_path):
    @hook("before_dispatch")
    def hold(ctx, outbound):
        if "wants to call" in outbound.message.text:
            return {"handled": True}

    async with ApprovalSetup(tmp_path, hooks=[hold]) as setup:
        await setup.say("write a", message_id="m1")
        await wait_until(lambda: setup.gateway._approvals.is_pending('["memory", "", "chat", ""]'))
        (question,) = setup.gateway._approvals._pending['["memory", "", "chat", ""]'].values()
        await setup.say("yes")
        await setup.say(f"/approve {question.code}")
        await setup.wait_for_text("not all of the call was shown here")
        assert setup.store.pending_count() == 1


async def test_a_call_whose_request_was_not_delivered_cannot_be_approved(tmp_path):
    channel = MemoryChannel()
    channel.failures.append(UndeliverableError("no"))
    async with ApprovalSetup(tmp_path, channel=channel) as setup:
        await setup.say("write a")
        await wait_until(lambda: setup.gateway.status().failed == 1)
        ((question,),) = [list(here.values()) for here in setup.gateway._approvals._pending.values()]
        await setup.say(f"/approve {question.code}")
        await setup.wait_for_text("not all of the call was shown here")
        assert setup.wrote == []


async def test_very_long_arguments_require_an_operator(tmp_path):
    turns = [lambda request: call("write", path="a" * 40_000) if len(request.messages) == 1 else "done"]
    async with ApprovalSetup(tmp_path, turns=turns) as setup:
        await setup.say("go")
        (code,) = await setup.wait_for_requests()
        assert "too many to show here" in setup.channel.texts()[0]
        await setup.say("yes")
        await setup.wait_for_text("cannot be approved here")
        await setup.say(f'/edit {code} {{"path": "b"}}')
        await wait_until(lambda: sum("cannot be approved here" in text for text in setup.channel.texts()) == 2)
        await setup.say(f"/deny {code}")
        await setup.wait_for_text("done")
        assert setup.wrote == []


async def test_without_a_store_there_are_no_approval_commands(tmp_path, gateways):
    gateway, channel = await gateways()
    for text in ("/approve ABCD", "/help", "yes"):
        await channel.say(text)
    await gateway.wait_until_idle()
    assert any("There is no command /approve" in text for text in channel.texts())
    assert not any("/deny" in text for text in channel.texts())
    assert "echo yes" in channel.texts()


async def test_typing_is_not_shown_while_a_run_waits_for_approval(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.channels.activity.TYPING_INTERVAL", 0.01)
    channel = MemoryChannel(capabilities=Capabilities(typing=True))
    async with ApprovalSetup(tmp_path, channel=channel) as setup:
        await setup.say("write a")
        await setup.wait_for_requests()
        before = len(channel.typed)
        await asyncio.sleep(0.1)  # to see that nothing happens; it cannot fail for being too short
        assert len(channel.typed) == before


TWO_PEOPLE = ApprovalPolicy(
    people={
        "ada": ApproverRights(by=("memory:ada",), can_approve=(CallPattern(),)),
        "ben": ApproverRights(by=("memory:ben", "ben@terminal"), can_approve=(CallPattern(),)),
        "cleo": ApproverRights(by=("memory:cleo",), can_approve=(CallPattern(),)),
        "dan": ApproverRights(by=("memory:dan",), can_approve=(CallPattern(tool="read"),)),
    },
    four_eyes=(CallPattern(tool="write"),),
)


async def test_two_people_of_the_policy_approve_in_the_conversation_but_not_the_one_who_asked(tmp_path):
    async with ApprovalSetup(tmp_path, approve=["ada", "ben", "cleo", "dan"], policy=TWO_PEOPLE) as setup:
        group = {"direct": False}
        await setup.say("write a", **group)
        (code,) = await setup.wait_for_requests()
        assert "Two people must approve it: ben or cleo." in setup.channel.texts()[0]
        await setup.say(f"/approve {code}", **group)
        await setup.wait_for_text(f"{code}: ada started the run that asks")
        await setup.say(f"/approve {code}", sender="dan", **group)
        await setup.wait_for_text(f"{code}: dan may not approve this call")
        await setup.say(f"/approve {code}", sender="ben", **group)
        await setup.wait_for_text(f"{code}: Approved by memory:ben. One more person must approve it: cleo.")
        await setup.say(f"/approve {code}", sender="ben", **group)
        await setup.wait_for_text(f"{code}: ben has approved this call already")
        assert setup.wrote == []
        await setup.say(f"/approve {code}", sender="cleo", **group)
        await setup.wait_for_text("The tool said: wrote a")
        assert setup.store.rows()[0].by == "memory:ben and memory:cleo"
