"""The stop switch of a server: no run begins a call, and everybody sees why (DESIGN 6.19)."""

import json

import pytest

from hookline.config import Settings
from hookline.hooks.metrics import MetricsHook
from hookline.server import build_server
from hookline.server import durable as durable_module
from hookline.server.errors import HaltedError
from hookline.server.halts import HaltApi, HaltService
from hookline.server.health import add_fleet_metrics
from hookline.stores.audit.log import AuditLog
from hookline.stores.runs import RunStore
from tests.server.http_rig import api, finished
from tests.server.rig import ME, Blocker, make, read_all, serving
from tests.waiting import wait_until

WHY = "halted by ada: it charges twice"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look for runs often."""
    monkeypatch.setattr(durable_module, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr("hookline.server.executor.POLL_SECONDS", 0.02)


def halt(service):
    service.store.halts.halt("it charges twice", by="ada")


async def test_a_halted_server_accepts_no_run_and_says_why(tmp_path):
    async with serving(tmp_path) as service:
        halt(service)
        with pytest.raises(HaltedError, match=f"^no runs are accepted now: {WHY}$"):
            await service.start(ME, "Hello.")
        service.store.halts.release()
        run = await service.start(ME, "Hello.")
        assert (await service.wait(run.id, ME)).status == "completed"


@pytest.mark.parametrize("durable", [False, True])
async def test_the_idempotency_key_of_an_accepted_run_returns_it_while_runs_are_halted(tmp_path, durable):
    async with serving(tmp_path, durable=durable) as service:
        run = await service.start(ME, "Hello.", idempotency_key="one", request={})
        await service.wait(run.id, ME)
        halt(service)
        assert (await service.start(ME, "Hello.", idempotency_key="one", request={})).id == run.id


async def test_a_run_in_progress_stops_with_the_halt_as_its_reason(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent()) as service:
        run = await service.start(ME, "Hello.")
        await wait_until(lambda: blocker.entered)
        halt(service)
        blocker.open.set()
        run = await service.wait(run.id, ME)
        assert (run.status, run.stop, run.reason) == ("stopped", "halted", WHY)
        signals = [e["signal"] for e in await read_all(service, run.id) if e["type"] == "signalled"]
        assert [(each["kind"], each["message"]) for each in signals] == [("halted", WHY)]
        assert blocker.left == 1


async def test_a_queued_run_waits_until_the_release(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent(), make(name="other"), max_runs=1) as service:
        first = await service.start(ME, "Hello.")
        await wait_until(lambda: blocker.entered)
        second = await service.start(ME, "Hello.", agent="other")
        halt(service)
        blocker.open.set()
        assert (await service.wait(first.id, ME)).stop == "halted"
        assert (await service.wait(second.id, ME, timeout=0.1)).status == "queued"
        service.store.halts.release()
        assert (await service.wait(second.id, ME)).status == "completed"


async def test_a_server_with_waiting_runs_stops_while_it_is_halted(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent()) as service:
        await service.start(ME, "Hello.", session="s")
        await wait_until(lambda: blocker.entered)
        run = await service.start(ME, "Hello.", session="s")
        halt(service)
        blocker.open.set()
        await wait_until(lambda: len(service.unfinished()) == 1)
    assert RunStore(tmp_path / "runs.db").get(run.id).status == "interrupted"


async def test_a_durable_run_waits_and_goes_on_after_the_release_without_a_second_call(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent(), durable=True) as service:
        run = await service.start(ME, "Hello.")
        await wait_until(lambda: blocker.entered)
        halt(service)
        blocker.open.set()
        await wait_until(lambda: not service.unfinished())
        assert service.store.get(run.id).status == "queued"
        service.store.halts.release()
        run = await service.wait(run.id, ME)
        assert (run.status, run.reply, blocker.entered) == ("completed", "done", 1)


async def test_a_server_that_starts_while_runs_are_halted_continues_none(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Hello.")
        await wait_until(lambda: blocker.entered)
        halt(service)
    blocker.open.set()
    async with serving(tmp_path, blocker.agent(), durable=True) as service:
        assert (await service.wait(run.id, ME, timeout=0.2)).is_over is False
        assert blocker.entered == 1
        service.store.halts.release()
        assert (await service.wait(run.id, ME)).status == "completed"
        assert blocker.entered == 2  # its process ended during the call


async def test_a_durable_run_that_waits_for_the_release_can_be_cancelled(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent(), durable=True) as service:
        run = await service.start(ME, "Hello.")
        await wait_until(lambda: blocker.entered)
        halt(service)
        blocker.open.set()
        await wait_until(lambda: not service.unfinished())
        run = await service.cancel(run.id, ME, "not needed")
        assert (run.status, blocker.entered) == ("cancelled", 1)


async def test_the_database_that_cannot_be_read_accepts_no_run(tmp_path, monkeypatch):
    async with serving(tmp_path) as service:
        monkeypatch.setattr("hookline._run.halt.GRACE_SECONDS", -1.0)
        with pytest.raises(HaltedError, match="halted because the stop switch cannot be read$"):
            await service.start(ME, "Hello.")


# The API.


async def test_admins_halt_and_release_runs_over_http_and_everybody_sees_why(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    async with api(tmp_path, make(), audit=log) as served:
        served.apis.append(HaltApi(HaltService(served.service.store.halts, log)))
        served.app.router.routes[:] = served.routes()
        me, admin = served.client("me"), served.client("admin")
        assert (await me.get("/halt")).json() == {
            "halted": False, "text": "", "reason": "", "by": "", "at": None, "past": []
        }  # fmt: skip
        assert (await me.post("/halt", json={"reason": "x"})).status_code == 403
        assert (await me.delete("/halt")).status_code == 403
        halted = await admin.post("/halt", json={"reason": "it charges twice"})
        assert halted.status_code == 200
        assert (halted.json()["halted"], halted.json()["reason"]) == (True, "it charges twice")
        assert (await admin.post("/halt", json={"reason": "another"})).json()["reason"] == "it charges twice"
        refused = await me.post("/runs", json={"task": "Hello."})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "halted")
        assert refused.json()["error"]["message"].endswith(": it charges twice")
        assert "retry-after" in refused.headers
        assert (await me.get("/halt")).json()["text"].endswith(": it charges twice")
        released = (await admin.delete("/halt")).json()
        assert (released["halted"], released["past"][0]["reason"]) == (False, "it charges twice")
        assert released["past"][0]["released_by"].startswith("key admin's")
        await finished(me)
    log.close()
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    acts = [(r["action"], r["by"].partition(" (")[0], r["reason"]) for r in records if r["type"] == "halt"]
    assert acts == [(act, "key admin's", "it charges twice") for act in ("halted", "released")]


async def test_a_built_server_has_the_switch_of_its_settings(tmp_path):
    settings = Settings(
        runs=str(tmp_path / "runs.db"),
        approval_file=str(tmp_path / "approvals.db"),
        sessions=str(tmp_path / "sessions"),
        audit=None,
        server={"port": 0},
    )
    server = build_server(settings, make(), home=tmp_path)
    routes = {(each.method, each.path): each.scopes for each in server.endpoints() if each.path == "/halt"}
    assert routes == {("GET", "/halt"): ("read",), ("POST", "/halt"): ("admin",), ("DELETE", "/halt"): ("admin",)}
    server.service.store.close()


def test_the_metric_says_whether_runs_are_halted(tmp_path):
    pytest.importorskip("prometheus_client")
    store, metrics = RunStore(tmp_path / "runs.db"), MetricsHook()
    add_fleet_metrics(metrics, store)
    store.open()
    assert "hookline_halted 0.0" in metrics.text()
    store.halts.halt("stop")
    assert "hookline_halted 1.0" in metrics.text()
