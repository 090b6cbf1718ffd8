"""The approvals API over HTTP."""

import asyncio
import json

import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.stores.approvals import ApprovalStore
from hookline.stores.audit.log import AuditLog
from hookline.stores.errors import StoreError

from ..waiting import wait_until
from .http_rig import api

deleted = []


@tool
def delete(path: str) -> str:
    """Delete a file."""
    deleted.append(path)
    return f"{path} is gone"


@guard(BEFORE_TOOL)
def ask(ctx, payload):
    return HookResult.ask("Really?", reason="files matter")


@pytest.fixture(autouse=True)
def nothing_is_deleted_yet():
    deleted.clear()


def asker(path="a.txt"):
    """An agent that deletes a file in every run, if approved."""

    def turn(request):
        return reply(request.messages[-1].content) if request.messages[-1].role == "tool" else call("delete", path=path)

    return Agent("asker", llm=ScriptedModel([turn], loop=True), tools=[delete], hooks=[ask])


async def waiting(served, name="me", **fields):
    """A run with a waiting call, and the call."""
    client = served.client(name)
    run = (await client.post("/runs", json={"task": "delete it", **fields})).json()["id"]
    async with asyncio.timeout(30):
        while not (found := (await client.get(f"/approvals?run={run}")).json()["approvals"]):
            await asyncio.sleep(0.005)
    return run, found[0]


async def over(served, run, name="me"):
    return (await served.client(name).get(f"/runs/{run}?wait=30")).json()


async def decided_in(served, run):
    answer = await served.client().get(f"/runs/{run}/events?limit=1000", headers={"Accept": "application/json"})
    return [event for event in answer.json()["events"] if event["type"] == "approval_decided"]


async def test_a_waiting_call_shows_everything_that_a_decision_needs_and_runs_when_approved(tmp_path):
    async with api(tmp_path, asker()) as served:
        run, seen = await waiting(served)
        assert (await served.client().get(f"/runs/{run}")).json()["status"] == "waiting"
        assert (seen["tool"], seen["arguments"], seen["status"]) == ("delete", {"path": "a.txt"}, "pending")
        assert (seen["run_id"], seen["asked_in"], seen["agent"]) == (run, run, "asker")
        assert [(each["text"], each["hook"], each["reason"]) for each in seen["questions"]] == [
            ("Really?", "ask", "files matter")
        ]
        assert not {"session_id", "host", "pid"} & seen.keys()
        assert (await served.client().get(f"/approvals/{seen['id']}")).json() == seen
        assert deleted == []
        answer = await served.client().post(
            f"/approvals/{seen['id']}", json={"decision": "approve", "digest": seen["digest"]}
        )
        assert (answer.status_code, answer.json()["status"]) == (200, "approved")
        assert (await over(served, run))["reply"] == "a.txt is gone"
        assert deleted == ["a.txt"]
        (event,) = await decided_in(served, run)
        me = next(row for row in served.store.keys() if row.name == "me's")  # noqa: SIM118
        assert (event["decision"], event["by"], event["digest"]) == ("approved", f"key me's ({me.id})", seen["digest"])
        assert (await served.client().get("/approvals")).json()["approvals"] == []
        for status in ("approved", "all"):
            found = (await served.client().get(f"/approvals?status={status}")).json()["approvals"]
            assert [each["id"] for each in found] == [seen["id"]]


async def test_a_denied_call_does_not_run_and_the_model_reads_the_message(tmp_path):
    async with api(tmp_path, asker()) as served:
        run, seen = await waiting(served)
        body = {"decision": "deny", "digest": seen["digest"], "message": "keep it"}
        assert (await served.client().post(f"/approvals/{seen['id']}", json=body)).json()["status"] == "denied"
        assert "keep it" in (await over(served, run))["reply"]
        assert deleted == []


async def test_an_edited_call_runs_with_the_new_arguments(tmp_path):
    @guard(BEFORE_TOOL)
    def only_text(ctx, payload):
        return HookResult.ask("?") if payload.arguments["path"] == "a.txt" else None

    agent = Agent(
        "asker", llm=ScriptedModel([call("delete", path="a.txt"), reply("ok")]), tools=[delete], hooks=[only_text]
    )
    async with api(tmp_path, agent) as served:
        run, seen = await waiting(served)
        body = {"decision": "edit", "digest": seen["digest"], "arguments": {"path": "b.txt"}}
        answer = await served.client().post(f"/approvals/{seen['id']}", json=body)
        assert answer.json()["edit"] == {"path": "b.txt"}
        await over(served, run)
        assert deleted == ["b.txt"]


async def test_the_first_decision_counts_and_later_ones_learn_what_it_was(tmp_path):
    async with api(tmp_path, asker()) as served:
        run, seen = await waiting(served)
        bodies = [{"decision": kind, "digest": seen["digest"]} for kind in ("approve", "deny")] * 5
        sending = [served.client().post(f"/approvals/{seen['id']}", json=body) for body in bodies]
        answers = await asyncio.gather(*sending)
        assert sorted(answer.status_code for answer in answers) == [200] + [409] * 9
        won = next(answer for answer in answers if answer.status_code == 200).json()["status"]
        for answer in answers:
            if answer.status_code == 409:
                assert answer.json()["error"]["code"] == "decided"
                assert f"it was {won} by key me's (" in answer.json()["error"]["message"]
        await over(served, run)
        assert (deleted == ["a.txt"]) == (won == "approved")


async def test_a_decision_with_another_digest_is_rejected(tmp_path):
    async with api(tmp_path, asker()) as served:
        _, seen = await waiting(served)
        answer = await served.client().post(
            f"/approvals/{seen['id']}", json={"decision": "approve", "digest": "0" * 64}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "other_digest")
        assert (await served.client().get(f"/approvals/{seen['id']}")).json()["status"] == "pending"
        assert deleted == []


@pytest.mark.parametrize(
    ("body", "expected_text"),
    [
        ({"decision": "approve"}, "digest is missing"),
        ({"digest": "x"}, "decision"),
        ({"decision": "aprove", "digest": "x"}, "Did you mean 'approve'? It is one of: approve, deny, edit"),
        ({"decision": "deny", "digest": "x", "remember": "always"}, "no field remember"),
        ({"decision": "approve", "digest": "x", "arguments": {}}, "no field arguments"),
        ({"decision": "edit", "digest": "x"}, "arguments is missing"),
        ({"decision": "edit", "digest": "x", "arguments": []}, "arguments: expected `object`"),
        ({"decision": "approve", "digest": "x", "by": "boss"}, "no field by"),
        ({"decision": "approve", "digest": "x", "remember": "ever"}, "It is one of: always, once, session"),
        ({"decision": "approve", "digest": "x", "pattern": {"path": 5}}, "pattern"),
        ({"decision": "approve", "pattern": {"path": "*"}}, "a pattern needs remember=session or remember=always"),
        ({"decision": "approve", "remember": "always", "pattern": {"path": "b*"}}, "does not cover this call"),
    ],
)
async def test_an_invalid_decision_is_rejected_with_the_problem(tmp_path, body, expected_text):
    async with api(tmp_path, asker()) as served:
        _, seen = await waiting(served)
        if "pattern" in body and "digest" not in body:
            body = body | {"digest": seen["digest"]}
        answer = await served.client().post(f"/approvals/{seen['id']}", json=body)
        assert (answer.status_code, expected_text in answer.json()["error"]["message"]) == (422, True), answer.text
        assert (await served.client().get(f"/approvals/{seen['id']}")).json()["status"] == "pending"


async def test_an_expired_call_or_one_of_an_ended_run_is_gone(tmp_path):
    async with api(tmp_path, asker()) as served:
        run, seen = await waiting(served)
        await served.client().post(f"/runs/{run}/cancel")
        await wait_until(lambda: served.service.approvals.find(seen["id"]).status == "cancelled")
        body = {"decision": "approve", "digest": seen["digest"]}
        answer = await served.client().post(f"/approvals/{seen['id']}", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "cancelled")
    async with api(tmp_path / "short", asker(), approval_seconds=0.2) as served:
        run = (await served.client().post("/runs", json={"task": "x"})).json()["id"]
        await wait_until(lambda: served.service.approvals.rows(status="expired"))
        seen = (await served.client().get(f"/approvals?run={run}&status=expired")).json()["approvals"][0]
        answer = await served.client().post(f"/approvals/{seen['id']}", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "expired")
        assert "Nobody approved" in (await over(served, run))["reply"]
    assert deleted == []


async def test_a_caller_can_access_the_calls_of_its_own_runs_only(tmp_path):
    async with api(tmp_path, asker()) as served:
        run, seen = await waiting(served)
        body = {"decision": "approve", "digest": seen["digest"], "remember": "always"}
        other, admin = served.client("other"), served.client("admin")
        assert (await other.get("/approvals?status=all")).json()["approvals"] == []
        for method, sent in (("GET", None), ("POST", body)):
            answer = await other.request(method, f"/approvals/{seen['id']}", json=sent)
            unknown = await other.request(method, "/approvals/appr_none", json=sent)
            assert answer.status_code == unknown.status_code == 404
            assert answer.text.replace(seen["id"], "appr_none") == unknown.text
        reader = served.client("reader", scopes=("read", "admin"))
        assert (await reader.get(f"/approvals/{seen['id']}")).json() == seen
        assert (await reader.post(f"/approvals/{seen['id']}", json=body)).status_code == 403
        assert (await served.client("starter", scopes=("run", "admin")).get("/approvals")).status_code == 403
        assert (await admin.post(f"/approvals/{seen['id']}", json=body)).status_code == 200
        assert (await over(served, run))["status"] == "completed"
        (grant,) = (await served.client().get("/grants")).json()["grants"]
        assert (await other.get("/grants")).json()["grants"] == []
        assert (await other.delete(f"/grants/{grant['id']}")).status_code == 404
        assert len((await admin.get("/grants")).json()["grants"]) == 1


async def test_a_permission_covers_later_calls_until_it_is_revoked_and_both_are_audited(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl", fsync="never")
    async with api(tmp_path, asker("notes/a.txt"), audit=audit) as served:
        run, seen = await waiting(served)
        body = {
            "decision": "approve",
            "digest": seen["digest"],
            "remember": "always",
            "pattern": {"path": "notes/*"},
        }
        answer = await served.client().post(f"/approvals/{seen['id']}", json=body, headers={"X-Correlation-ID": "c-1"})
        assert answer.json()["remember"] == "always"
        await over(served, run)
        (grant,) = (await served.client().get("/grants")).json()["grants"]
        assert (grant["scope"], grant["tool"], grant["pattern"], grant["hooks"]) == (
            "always",
            "delete",
            {"path": "notes/*"},
            ["ask"],
        )
        again = (await served.client().post("/runs", json={"task": "x", "wait": 30})).json()
        assert again["status"] == "completed"
        assert deleted == ["notes/a.txt"] * 2
        answer = await served.client().delete(f"/grants/{grant['id']}", headers={"X-Correlation-ID": "c-2"})
        assert (answer.status_code, answer.content) == (204, b"")
        assert (await served.client().delete(f"/grants/{grant['id']}")).status_code == 404
        await waiting(served)
        assert deleted == ["notes/a.txt"] * 2
    audit.close()
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    grant_records = [record for record in records if record["type"] == "grant"]
    assert [(r["action"], r["grant"], r["correlation_id"]) for r in grant_records] == [
        ("given", grant["id"], "c-1"),
        ("revoked", grant["id"], "c-2"),
    ]
    assert grant_records[0]["by"].startswith("key me's (")
    assert (grant_records[0]["run_id"], grant_records[0]["approval"]) == (run, seen["id"])


async def test_an_unreadable_approval_store_is_reported(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise StoreError("the disk is gone")

    async with api(tmp_path, asker()) as served:
        for name in ("find", "rows", "grants"):
            monkeypatch.setattr(ApprovalStore, name, broken)
        for path in ("/approvals", "/approvals/appr_1", "/grants"):
            answer = await served.client().get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store")
            assert "disk" not in answer.text


async def test_a_decision_counts_even_if_its_permission_cannot_be_audited(tmp_path, monkeypatch, caplog):
    audit = AuditLog(tmp_path / "audit.jsonl", fsync="never")
    async with api(tmp_path, asker(), audit=audit) as served:
        run, seen = await waiting(served)

        def broken(*_, **__):
            raise StoreError("the disk is gone")

        monkeypatch.setattr(ApprovalStore, "grants", broken)
        body = {"decision": "approve", "digest": seen["digest"], "remember": "always"}
        assert (await served.client().post(f"/approvals/{seen['id']}", json=body)).status_code == 200
        assert (await over(served, run))["status"] == "completed"
    audit.close()
    assert "not in the audit log" in caplog.text
