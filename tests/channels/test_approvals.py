"""Calls that wait for approval, decided in the conversation that they belong to."""

import asyncio
import re
import time

import pytest

from hookline import call, hook
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.protocol import Capabilities, UndeliverableError
from hookline.hooks import AuditLogHook

from ..waiting import wait_until
from .desk import Desk


async def test_a_yes_with_the_code_lets_exactly_that_call_run(tmp_path):
    async with Desk(tmp_path, hooks=[AuditLogHook(tmp_path / "audit.jsonl")]) as desk:
        await desk.say("write notes/a.txt", message_id="m1")
        (code,) = await desk.asked()
        (question,) = desk.channel.texts()
        assert '{"path": "notes/a.txt", "text": ""}' in question
        assert "PlanModeHook asks: May write run?" in question
        assert f"/approve {code}" in question
        (row,) = desk.store.rows(status="pending", owner="channel:memory")
        assert (row.tool, row.arguments, row.correlation_id) == ("write", {"path": "notes/a.txt", "text": ""}, "m1")
        assert row.root_id == row.run_id
        assert desk.wrote == []
        await desk.say(f"/approve {code.lower()}")
        await desk.told("The tool said: wrote notes/a.txt")
        assert desk.channel.texts()[1:] == [f"{code}: approved. write runs.", "The tool said: wrote notes/a.txt"]
        assert desk.wrote == [("notes/a.txt", "")]
        assert desk.store.find(row.id).by == "memory:ada"
    audit = (tmp_path / "audit.jsonl").read_text()
    assert '"by":"memory:ada"' in audit
    assert f'"digest":"{row.digest}"' in audit


async def test_a_no_does_not_and_its_words_reach_the_model(tmp_path):
    async with Desk(tmp_path) as desk:
        await desk.say("write a")
        (code,) = await desk.asked()
        await desk.say(f"/deny {code} use the other file")
        assert "use the other file" in await desk.told("The tool said")
        assert desk.wrote == []


async def test_an_edit_runs_with_other_arguments(tmp_path):
    async with Desk(tmp_path) as desk:
        await desk.say("write a")
        (code,) = await desk.asked()
        await desk.say(f"/edit {code} [1]")
        assert "as JSON" in await desk.told("Nothing is decided")
        await desk.say(f'/edit {code} {{"path": "b", "text": "hello there"}}')
        await desk.told("The tool said: wrote b")
        assert desk.wrote == [("b", "hello there")]


@pytest.mark.parametrize(("word", "wrote"), [("yes", [("a", "")]), ("Yes!", [("a", "")]), ("no", []), ("N.", [])])
async def test_a_plain_answer_is_enough_where_one_call_waits(tmp_path, word, wrote):
    async with Desk(tmp_path, when_busy="steer") as desk:
        await desk.say("write a")
        await desk.asked()
        await desk.say(word)
        await desk.told("The tool said")
        assert desk.wrote == wrote
        await desk.say("yes")
        await desk.told("echo yes")


async def test_of_two_calls_a_plain_yes_decides_none_and_each_has_its_own_code(tmp_path):
    async with Desk(tmp_path) as desk:
        await desk.say("write a b")
        codes = await desk.asked(2)
        paths = {code: row.arguments["path"] for code in codes for row in desk.store.rows() if row.arguments["path"]}
        assert len(set(codes)) == len(paths) == 2
        await desk.say("yes")
        told = await desk.told("2 calls wait")
        assert all(f"/approve {code}" in told for code in codes)
        await desk.say("/approve")
        await wait_until(lambda: sum("2 calls wait" in text for text in desk.channel.texts()) == 2)
        assert desk.wrote == []
        await desk.say("/approvals")
        listed = await desk.told(f"{codes[0]}: write {{")
        assert f"{codes[1]}: write {{" in listed
        second = next(text for text in desk.channel.texts() if text.startswith(f"{codes[1]}: bot wants"))
        await desk.say(f"/deny {codes[0]}")
        await desk.told(f"{codes[0]}: denied")
        await desk.say("yes")
        await desk.told(f"{codes[1]}: approved")
        await desk.told("The tool said")
        assert [path for path, _ in desk.wrote] == re.findall(r'"path": "(\w)"', second)


async def test_who_may_not_approve_cannot_and_their_yes_is_a_message_as_any_other(tmp_path):
    async with Desk(tmp_path) as desk:
        await desk.say("write a", direct=False)
        (code,) = await desk.asked()
        for command in (f"/approve {code}", f"/deny {code}", f"/edit {code} {{}}", "/approve nonsense"):
            await desk.say(command, sender="bob", direct=False)
        await wait_until(lambda: desk.channel.texts().count("You may not decide about calls here.") == 4)
        await desk.say("yes", sender="bob", direct=False)
        await desk.say("yes", sender="", direct=False)
        assert desk.store.counts() == 1
        await desk.say(f"/approve {code}", direct=False)
        await wait_until(lambda: desk.channel.texts().count("echo yes") == 2)
        assert desk.wrote == [("a", "")]


async def test_a_code_is_good_in_its_own_conversation_only(tmp_path):
    async with Desk(tmp_path) as desk:
        await desk.say("write a", chat="one")
        await desk.say("write b", chat="two")
        (one,), (two,) = await desk.asked(chat="one"), await desk.asked(chat="two")
        await desk.say(f"/approve {one}", chat="two")
        assert f"/approve {two}" in await desk.told("There is no such code here.", chat="two")
        await desk.say(f"/approve {one}", chat="three")
        await desk.told("There is no such code. No call waits for approval here.", chat="three")
        await desk.say("yes", chat="three")
        await desk.told("echo yes", chat="three")
        assert desk.wrote == []
        assert desk.store.counts() == 2


async def test_where_nobody_may_approve_people_are_told_that_an_operator_must(tmp_path):
    async with Desk(tmp_path, approve=()) as desk:
        await desk.say("write secret/plans", chat="direct")
        await desk.say("write secret/plans", chat="group", direct=False)
        await desk.asked(chat="direct")
        await desk.asked(chat="group")
        assert "secret/plans" in desk.channel.texts("direct")[0]
        for chat in ("direct", "group"):
            assert "An operator must approve it" in desk.channel.texts(chat)[0]
            assert "/approve" not in desk.channel.texts(chat)[0]
        await desk.say("/approvals", chat="group", direct=False)
        await wait_until(lambda: len(desk.channel.texts("group")) == 2)
        assert not any("secret" in text for text in desk.channel.texts("group"))
        for row in desk.store.rows(status="pending"):
            desk.store.decide(row.id, decision="approve", digest=row.digest, by="root@terminal")
        for chat in ("direct", "group"):
            assert await desk.told("(approved by root@terminal)", chat)
            await desk.told("The tool said", chat)
            assert "approved by" in desk.channel.texts(chat)[-2]


async def test_a_named_approver_is_of_no_use_in_the_direct_chat_of_somebody_else(tmp_path):
    async with Desk(tmp_path) as desk:
        await desk.say("write a", sender="bob")
        await desk.asked()
        assert "An operator must approve it" in desk.channel.texts()[0]


async def test_what_is_allowed_for_the_session_or_for_good_is_not_asked_again(tmp_path):
    async with Desk(tmp_path, approve=("ada", "*")) as desk:
        await desk.say("write notes/a")
        (code,) = await desk.asked()
        await desk.say(f"/approve {code} forever")
        await desk.told("Nothing is decided. Write /approve CODE")
        await desk.say(f"/approve {code} session path=notes/*")
        await desk.told("That pattern does not cover this call")
        await desk.say(f"/approve {code} session path=notes/* *=*")
        await desk.told("The tool said")
        await desk.say("write notes/b")
        await wait_until(lambda: len(desk.wrote) == 2)
        await desk.say("write notes/c", chat="other", sender="bob")
        (code,) = await desk.asked(chat="other")
        await desk.say(f"/approve {code} always path=notes/* text=*", chat="other", sender="bob")
        await desk.told("You may not approve calls for good", "other")
        await desk.say(f"/approve {code} always path=notes/* text=*", chat="other", sender="ada")
        await desk.told("The tool said", "other")
        await desk.say("write notes/d", chat="third", sender="bob")
        await desk.told("The tool said", "third")
        assert [(grant.scope, grant.by) for grant in desk.store.grants(owner="channel:memory")] == [
            ("always", "memory:ada"), ("session", "memory:ada")
        ]  # fmt: skip


async def test_a_decision_made_elsewhere_wins_and_a_later_answer_here_is_out_of_date(tmp_path, monkeypatch):
    async with Desk(tmp_path) as desk:
        find = desk.store.find
        monkeypatch.setattr(desk.store, "find", lambda id: (time.sleep(0.2), find(id))[1])  # it is told in order still
        await desk.say("write a")
        (code,) = await desk.asked()
        (row,) = desk.store.rows()
        desk.store.decide(row.id, decision="deny", digest=row.digest, by="api:ops", message="not today")
        told = await desk.told("The tool said")
        assert "not today" in told
        assert desk.channel.texts()[1] == f"{code}: write does not run (denied by api:ops: not today)."
        await desk.say(f"/approve {code}")
        await desk.told(f"{code} is out of date")
        assert desk.wrote == []


async def test_a_call_that_nobody_answers_is_denied_when_its_time_is_over(tmp_path):
    async with Desk(tmp_path, approval_seconds=0.3) as desk:
        await desk.say("write a")
        (code,) = await desk.asked()
        await desk.told("The tool said: Nobody approved")
        assert f"{code}: write does not run: nobody approved it in time." in desk.channel.texts()
        assert desk.wrote == []
        assert desk.store.rows()[0].status == "expired"


async def test_a_yes_that_may_be_meant_for_a_call_decided_elsewhere_decides_nothing(tmp_path):
    async with Desk(tmp_path) as desk:
        await desk.say("write a")
        await desk.asked()
        (row,) = desk.store.rows(status="pending")
        desk.store.decide(row.id, decision="deny", digest=row.digest, by="api:ops")
        await desk.told("The tool said")
        await desk.say("write b")
        codes = await desk.asked(2)
        await desk.say("yes")
        await desk.told(f"write /approve {codes[-1]}.")
        assert desk.wrote == []
        await desk.say(f"/approve {codes[-1]}")
        await desk.told("The tool said: wrote b")


async def test_stop_ends_the_waiting_too(tmp_path):
    async with Desk(tmp_path) as desk:
        await desk.say("write a")
        (code,) = await desk.asked()
        await desk.say("/stop")
        await desk.told("Stopped.")
        await desk.told(f"{code}: write is no longer asked about: its run is over.")
        assert desk.store.rows()[0].status == "cancelled"
        await desk.say(f"/approve {code}")
        await desk.told(f"{code} is out of date")
        await desk.say("hello")
        await desk.told("echo hello")
        assert desk.wrote == []


async def test_a_run_that_waits_leaves_its_place_to_others(tmp_path):
    async with Desk(tmp_path, max_concurrent=1) as desk:
        for chat in ("one", "two"):
            await desk.say("write a", chat=chat)
            await desk.asked(chat=chat)
        await desk.say("hello", chat="three")
        await desk.told("echo hello", "three")
        for chat in ("one", "two"):
            await desk.say("yes", chat=chat)
            await desk.told("The tool said", chat)
        await desk.gateway.wait_until_idle()
        await wait_until(lambda: not desk.gateway._runner._returning)
        assert desk.gateway._runner.queues._slots._value == 1


async def test_after_a_restart_it_is_asked_anew_and_the_old_code_is_out_of_date(tmp_path):
    async with Desk(tmp_path, grace=600) as first:
        await first.say("write a", message_id="m1")
        (old,) = await first.asked()
        async with asyncio.timeout(60):  # nobody could answer any more: there is nothing to wait for
            await first.gateway.stop()
        assert first.store.rows()[0].status == "cancelled"
        assert f"{old}: this is out of date" in first.channel.texts()[-1]
    async with Desk(tmp_path) as second:
        (code,) = await second.asked()
        assert code != old
        await second.say(f"/approve {old}")
        assert code in await second.told(f"{old} is out of date: nothing is decided. 1 call waits")
        assert second.wrote == []
        await second.say(f"/approve {code}")
        await second.told("The tool said: wrote a")
        assert [row.status for row in second.store.rows()] == ["approved", "cancelled"]


async def test_a_gateway_that_ended_without_a_word_says_which_code_is_out_of_date(tmp_path):
    first = Desk(tmp_path)
    await first.gateway.start()
    await first.say("write a", message_id="m1")
    (old,) = await first.asked()
    gateway = first.gateway  # as kill -9 would end it: it has begun the run, and says nothing more
    gateway._stopping = True
    gateway._looking.cancel()
    for lanes in gateway._lanes:
        await lanes.stop()
    await gateway._mailbox.transact(lambda db: db.execute("DELETE FROM programs"))
    await gateway._mailbox.detach()
    gateway._over.set()
    async with Desk(tmp_path) as second:
        (code,) = [code for code in await second.asked() if code != old]
        assert f"I ask again. {old} is out of date." in second.channel.texts()[0]
        await second.say(f"/approve {code}")
        await second.told("The tool said: wrote a")
    await gateway._approvals.close()


async def test_a_yes_from_before_a_restart_decides_nothing(tmp_path):
    async with Desk(tmp_path) as first:
        await first.say("write a", message_id="m1")
        await first.asked()
        first.gateway._inbox.queues.pause()
        await first.say("yes", message_id="m2")
    later = asyncio.Event()

    @hook("inbound_claim")
    async def hold(ctx, inbound):
        if inbound.message.text == "yes":
            await later.wait()

    async with Desk(tmp_path, hooks=[hold]) as second:
        (code,) = await second.asked()
        later.set()
        await second.say(f"/deny {code}")
        await second.told("echo yes")
        assert second.wrote == []


async def test_long_arguments_are_shown_in_full_and_a_yes_waits_until_they_are(tmp_path):
    limit = 300
    text = "".join(f"{number} and  two spaces; " for number in range(90))
    channel = MemoryChannel(capabilities=Capabilities(max_length=limit))
    turns = [lambda request: call("write", path="a", text=text) if len(request.messages) == 1 else "done"]
    async with Desk(tmp_path, channel=channel, turns=turns) as desk:
        await desk.say("go")
        await desk.told("/approve")
        sent = desk.channel.texts()
        assert all(len(part) <= limit for part in sent)
        blocks = [part.split("```\n")[1].removesuffix("\n```") for part in sent if "```" in part]
        blocks = [block.removesuffix("```").rstrip("\n") for block in blocks]
        assert text in "".join(blocks).replace("\\u0020", " ")
        await desk.say("yes")
        await desk.told("done")
        assert desk.wrote == [("a", text)]


async def test_what_could_not_be_shown_cannot_be_approved_here(tmp_path):
    @hook("before_dispatch")
    def hold(ctx, outbound):
        if "wants to call" in outbound.message.text:
            return {"handled": True}

    async with Desk(tmp_path, hooks=[hold]) as desk:
        await desk.say("write a", message_id="m1")
        await wait_until(lambda: desk.gateway._approvals.waits('["memory", "", "chat", ""]'))
        (question,) = desk.gateway._approvals._open['["memory", "", "chat", ""]'].values()
        await desk.say("yes")
        await desk.say(f"/approve {question.code}")
        await desk.told("not all of it was shown here")
        assert desk.store.counts() == 1


async def test_a_question_that_never_arrived_cannot_be_approved_here(tmp_path):
    channel = MemoryChannel()
    channel.failures.append(UndeliverableError("no"))
    async with Desk(tmp_path, channel=channel) as desk:
        await desk.say("write a")
        await wait_until(lambda: desk.gateway.status().failed == 1)
        ((question,),) = [list(here.values()) for here in desk.gateway._approvals._open.values()]
        await desk.say(f"/approve {question.code}")
        await desk.told("not all of it was shown here")
        assert desk.wrote == []


async def test_arguments_that_are_too_long_for_a_conversation_are_for_an_operator(tmp_path):
    turns = [lambda request: call("write", path="a" * 40_000) if len(request.messages) == 1 else "done"]
    async with Desk(tmp_path, turns=turns) as desk:
        await desk.say("go")
        (code,) = await desk.asked()
        assert "too many to be shown here" in desk.channel.texts()[0]
        await desk.say("yes")
        await desk.told("cannot be approved here")
        await desk.say(f"/deny {code}")
        await desk.told("done")
        assert desk.wrote == []


async def test_without_a_store_nothing_waits_and_there_are_no_such_commands(tmp_path, gateways):
    gateway, channel = await gateways()
    for text in ("/approve ABCD", "/help", "yes"):
        await channel.say(text)
    await gateway.wait_until_idle()
    assert any("There is no command /approve" in text for text in channel.texts())
    assert not any("/deny" in text for text in channel.texts())
    assert "echo yes" in channel.texts()


async def test_typing_is_not_shown_while_nobody_is_at_work(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.channels.activity.TYPING_INTERVAL", 0.01)
    channel = MemoryChannel(capabilities=Capabilities(typing=True))
    async with Desk(tmp_path, channel=channel) as desk:
        await desk.say("write a")
        await desk.asked()
        before = len(channel.typed)
        await asyncio.sleep(0.1)  # to see that nothing happens; it cannot fail for being too short
        assert len(channel.typed) == before
