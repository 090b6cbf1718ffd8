"""One setting, the hook for sensitive data, decides for everything that is stored about a run."""

import asyncio
import logging
import os
import time

import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, Session, call, guard, reply, tool
from hookline._sensitive.encryption import decrypted, encrypted, make_key
from hookline.errors import DataKeyError
from hookline.hooks import ApprovalsHook, AuditLogHook, ObservabilityHook, PlanModeHook, SensitiveDataHook
from hookline.records import RecordHook
from hookline.server.logs import setup_logs
from hookline.stores.approvals import ApprovalStore
from hookline.stores.runs import RunStore
from hookline.stores.sessions import JsonSessionStore
from hookline.teams import Team

from ..secret_scene import PLACES, SENSITIVE, leaks, planted, rows_of, script, secretive
from ..waiting import wait_until
from .http_rig import api
from .rig import ME, read_all, serving


@tool
def nothing() -> str:
    """Do nothing."""
    return "nothing"


async def deny_with_note(approvals, note=planted("innote")):
    await wait_until(lambda: approvals.rows(status="pending"))
    (row,) = approvals.rows(status="pending")
    approvals.decide(row.id, decision="deny", digest=row.digest, by="ada", message=f"no: {note}")


def test_the_planted_secrets_are_stored_without_the_hook(tmp_path):
    store = RunStore(tmp_path / "runs.db")
    agent = Agent("helper", llm=ScriptedModel([reply(planted("inreply"))]))
    agent.run(planted("intask"), durable=store, run_id="order-7")
    assert ("intask", "runs") in leaks(tmp_path, store)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_run_of_a_program_stores_no_secret(tmp_path, durable):
    store, approvals = RunStore(tmp_path / "runs.db"), ApprovalStore(tmp_path / "approvals.db")
    audit = AuditLogHook(tmp_path / "audit.jsonl", content=True)
    hooks = [ObservabilityHook(store), audit, RecordHook(tmp_path / "records"), ApprovalsHook(approvals)]
    agent, sessions = secretive(*hooks), JsonSessionStore(tmp_path / "sessions")
    session = Session("talk", [{"role": "user", "content": planted("inhistory")}])
    options = {"durable": store, "run_id": "order-7"} if durable else {}
    run = agent.start(f"The key is {planted('intask')}.", session=session, **options)
    run.steer(f"Also {planted('insteering')}.")
    await deny_with_note(approvals)
    result = await run.result()
    assert result.status == "completed"
    sessions.save(session)
    for hook in hooks[:2]:
        hook.flush()
    assert leaks(tmp_path, store, approvals, exact=not durable) == []
    assert "planted" in (tmp_path / "audit.jsonl").read_text()


@pytest.mark.parametrize("durable", [False, True])
async def test_a_server_stores_and_shows_no_secret(tmp_path, durable, capsys):
    undo = setup_logs("json")
    audit = AuditLogHook(tmp_path / "audit.jsonl", content=True)
    agent = secretive(audit, RecordHook(tmp_path / "records"))
    try:
        async with serving(tmp_path, agent, durable=durable) as service:
            run = await service.start(ME, f"The key is {planted('intask')}.", session="talk")
            shown = [run]
            await deny_with_note(service.approvals)
            shown.append(await service.wait(run.id, ME))
            shown.append(await read_all(service, run.id))
            shown.append((await service.search(ME, text="planted")).runs)
            assert shown[1].status == "completed"
            assert (await service.search(ME, text=planted("intask"))).runs == []
            logging.getLogger("hookline").error("it failed with %s", planted("inerror"))
        audit.flush()
        assert leaks(tmp_path, service.store, service.approvals, exact=not durable) == []
    finally:
        undo()
    assert [place for place in PLACES if f"{place}91" in f"{shown}{capsys.readouterr()}"] == []


async def test_a_cancelled_run_stores_no_secret_of_the_reason(tmp_path):
    async with serving(tmp_path, secretive()) as service:
        run = await service.start(ME, "Look.")
        await wait_until(lambda: service.approvals.rows(status="pending"))
        over = await service.cancel(run.id, ME, f"because of {planted('innote')}")
        assert "[planted]" in over.reason
    assert leaks(tmp_path, service.store, service.approvals) == []


@tool
def delete(path: str) -> str:
    """Delete it."""
    return "deleted"


async def test_a_decision_about_a_call_of_a_subagent_is_stored_without_secrets(tmp_path):
    team = Team(first="desk")
    turns = [call("delegate", to="worker", task="Delete it."), reply("Done.")]
    hooks = [SensitiveDataHook(**SENSITIVE), PlanModeHook(["delete"])]
    team.add(Agent("desk", "talks", llm=ScriptedModel(turns), tools=[team], hooks=hooks))
    turns = [call("delete", path="a.txt"), reply("Denied.")]
    team.add(Agent("worker", "works", llm=ScriptedModel(turns), tools=[delete]))
    async with api(tmp_path, team) as served:
        client = served.client()
        run = (await client.post("/runs", json={"task": "Go."})).json()
        await wait_until(lambda: served.service.approvals.rows(status="pending"))
        (row,) = served.service.approvals.rows(status="pending")
        assert row.agent == "worker"
        body = {"decision": "deny", "digest": row.digest, "message": f"no: {planted('innote')}"}
        assert "[planted]" in (await client.post(f"/approvals/{row.id}", json=body)).json()["message"]
        assert (await finished_run(client, run["id"]))["status"] == "completed"
    assert leaks(tmp_path, served.service.store) == []  # also in the write-ahead log of the open approvals


async def finished_run(client, run_id):
    while (run := (await client.get(f"/runs/{run_id}")).json())["status"] in ("running", "waiting", "queued"):
        await asyncio.sleep(0.01)
    return run


async def test_a_durable_run_that_goes_on_in_another_service_stores_no_secret(tmp_path):
    model = script()
    async with serving(tmp_path, secretive(model=model), durable=True) as service:
        run = await service.start(ME, f"The key is {planted('intask')}.")
        await wait_until(lambda: service.approvals.rows(status="pending"))
    for store in (service.store, service.approvals):
        store.close()
    async with serving(tmp_path, secretive(model=model), durable=True) as service:
        await deny_with_note(service.approvals)
        over = await service.wait(run.id, ME)
        assert over.status == "completed"
        assert "[planted]" in over.task
        assert "[planted]" in over.reply
    assert leaks(tmp_path, service.store, service.approvals, exact=False) == []


# What has to be exact is encrypted with the keys of the operator.


@pytest.fixture
def keys(monkeypatch):
    """Set the keys of this process."""

    def use(*given):
        monkeypatch.setenv("HOOKLINE_DATA_KEYS", ",".join(given))

    yield use
    monkeypatch.undo()


async def test_with_a_key_no_file_and_no_table_has_a_secret(tmp_path, keys):
    keys(make_key())
    model = script()
    async with serving(tmp_path, secretive(model=model), durable=True) as service:
        run = await service.start(ME, f"The key is {planted('intask')}.")
        await wait_until(lambda: service.approvals.rows(status="pending"))
        rows = rows_of(service.store)
        assert "hookline-encrypted" in rows["journal"]
        assert "hookline-encrypted" in rows["durable_runs"]
    for store in (service.store, service.approvals):
        store.close()
    async with serving(tmp_path, secretive(model=model), durable=True) as service:
        await service.steer(run.id, ME, f"And {planted('insteering')}.")
        await deny_with_note(service.approvals)
        assert (await service.wait(run.id, ME)).status == "completed"
    assert leaks(tmp_path, service.store, service.approvals) == []


async def test_a_process_without_the_key_leaves_the_run_to_one_that_has_it(tmp_path, keys, caplog):
    old, new, model = make_key(), make_key(), script()
    keys(old)
    async with serving(tmp_path, secretive(model=model), durable=True) as service:
        run = await service.start(ME, "Look.")
        await wait_until(lambda: service.approvals.rows(status="pending"))
    keys(new)
    async with serving(tmp_path, secretive(model=model), durable=True) as service:
        await deny_with_note(service.approvals, "no")
        await wait_until(lambda: "is left to others" in caplog.text)
        assert "which this process does not have: add it to HOOKLINE_DATA_KEYS" in caplog.text
        assert "cannot be read any more" in caplog.text
        assert not (await service.get(run.id, ME)).is_over  # it can be listed, and is unchanged
    keys(new, old)
    async with serving(tmp_path, secretive(model=model), durable=True) as service:
        assert (await service.wait(run.id, ME)).status == "completed"
    assert caplog.text.count("is left to others") == 1


async def test_a_run_whose_key_is_lost_can_be_cancelled(tmp_path, keys):
    keys(make_key())
    async with serving(tmp_path, secretive(), durable=True) as service:
        run = await service.start(ME, "Look.")
        await wait_until(lambda: service.approvals.rows(status="pending"))
    keys(make_key())
    async with serving(tmp_path, secretive(), durable=True) as service:
        over = await service.cancel(run.id, ME, "the key is lost")
    assert (over.status, over.reason) == ("cancelled", "the key is lost")


def test_a_program_reads_its_durable_run_with_the_key_only(tmp_path, keys):
    store, old, new = RunStore(tmp_path / "runs.db"), make_key(), make_key()
    agent = Agent("helper", llm=ScriptedModel([reply("Done.")]))
    keys(old)
    assert agent.run("Go.", durable=store, run_id="order-7").reply == "Done."
    keys(new, old)
    assert agent.run("Go.", durable=store, run_id="order-7").reply == "Done."
    keys(new)
    with pytest.raises(DataKeyError, match="the journal of run order-7 is encrypted with the key"):
        agent.run("Go.", durable=store, run_id="order-7")
    assert [run.id for run in store.runs()] == ["order-7"]


def test_a_journal_without_encryption_is_read_after_a_key_was_given(tmp_path, keys):
    store, agent = RunStore(tmp_path / "runs.db"), Agent("helper", llm=ScriptedModel([reply("Done.")]))
    agent.run("Go.", durable=store, run_id="order-7")
    keys(make_key())
    assert agent.run("Go.", durable=store, run_id="order-7").reply == "Done."


def test_keys_come_from_a_file_too(tmp_path, monkeypatch):
    first, second = make_key(), make_key()
    (tmp_path / "keys").write_text(f"{first}\n{second}\n")
    monkeypatch.setenv("HOOKLINE_DATA_KEY_FILE", str(tmp_path / "keys"))
    made = encrypted(b"text")
    assert b"text" not in made
    monkeypatch.setenv("HOOKLINE_DATA_KEYS", second)
    assert decrypted(made, "it") == b"text"  # those of the file count too
    for wrong in ("", "no key"):
        (tmp_path / "keys").write_text(wrong)
        monkeypatch.delenv("HOOKLINE_DATA_KEYS", raising=False)
        os.utime(tmp_path / "keys", ns=(1, len(wrong)))
        with pytest.raises(DataKeyError, match="hookline db key"):
            encrypted(b"text")
    monkeypatch.setenv("HOOKLINE_DATA_KEY_FILE", str(tmp_path / "none"))
    with pytest.raises(DataKeyError, match="cannot be read"):
        encrypted(b"text")


def test_changed_data_is_recognized(keys):
    keys(make_key())
    made = bytearray(encrypted(b"text"))
    made[-1] = ord("A") if made[-1] != ord("A") else ord("B")
    with pytest.raises(DataKeyError, match="it is damaged"):
        decrypted(bytes(made), "it")


# Retention.


async def test_old_runs_are_deleted_with_their_conversation_and_their_approvals(tmp_path):
    words = "the marmalade of yesterday"

    @guard(BEFORE_TOOL)
    def ask(ctx, payload):
        return HookResult.ask(f"May it run, with {words}?")

    turns = [call("nothing"), reply(words), reply(words), reply("kept")]
    async with serving(tmp_path, Agent("helper", llm=ScriptedModel(turns), tools=[nothing], hooks=[ask])) as service:
        old = await service.start(ME, words, session="old")
        await deny_with_note(service.approvals, words)
        await service.wait(old.id, ME)
        both = await service.start(ME, "hello", session="both")
        await service.wait(both.id, ME)
        newer = await service.start(ME, "hello again", session="both")
        await service.wait(newer.id, ME)
        long_ago = time.time() - 40 * 24 * 3600
        with service.store.db.transaction(write=True) as db:
            times = (long_ago, long_ago, old.id, both.id)
            db.execute("UPDATE runs SET created = ?, ended = ? WHERE run_id IN (?, ?)", times)
        assert len(service._sessions.list()) == 2
        service.start_tidying()
        await wait_until(lambda: service.approvals.rows() == [])
        await wait_until(lambda: service.store.get(old.id).task == "")
        done = "SELECT 1 FROM periodic_work WHERE name = 'served runs' AND done > 0"
        await wait_until(lambda: service.store.db.execute(done))
        (kept,) = service._sessions.list()
        assert kept.id == newer.session_id
    for store in (service.store, service.approvals):
        store.close()
    assert [file.name for file in tmp_path.rglob("*") if file.is_file() and b"marmalade" in file.read_bytes()] == [
        service._sessions._path(kept.id).name  # its conversation goes on
    ]
