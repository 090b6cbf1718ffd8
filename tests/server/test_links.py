"""Signed links to waiting calls, on a server that is built from settings."""

import asyncio
import json

import httpx
import pytest

from hookline import Agent, ScriptedModel, call, reply, tool
from hookline.config.errors import ConfigError
from hookline.config.settings import Settings
from hookline.hooks import PlanModeHook
from hookline.server import build_server
from hookline.stores.approvals import ApprovalStore

from ..hooks.test_approval_links import SECRET, Webhook
from ..waiting import wait_until


def agent(ran):
    @tool
    def deploy(env: str) -> str:
        """Deploy."""
        ran.append(env)
        return f"deployed to {env}"

    turns = [call("deploy", env="prod"), reply("It is out.")]
    return Agent("ops", llm=ScriptedModel(turns), tools=[deploy], hooks=[PlanModeHook(["deploy"])])


def settings(tmp_path, **links):
    table = {"port": 0, "approval_links": links} if links else {"port": 0}
    return Settings(
        runs=str(tmp_path / "runs.db"),
        sessions=str(tmp_path / "sessions"),
        approval_file=str(tmp_path / "approvals.db"),
        server=table,
    )


async def test_a_served_run_goes_on_when_a_person_uses_the_link(tmp_path, monkeypatch, caplog):
    caplog.set_level("DEBUG", "hookline")
    monkeypatch.setenv("LINK_SECRET", SECRET)
    ran = []
    with Webhook() as webhook:
        given = {"secret": "env:LINK_SECRET", "webhook": webhook.url, "people": ["ann@example.org"]}
        server = build_server(settings(tmp_path, **given), agent(ran))
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as http:
                started = (await http.post("/runs", json={"task": "Ship it."})).json()
                await wait_until(lambda: webhook.received)
                link = json.loads(webhook.received[0][1])["link"]
                assert link.startswith(f"{server.url}/approve/")
                page = await http.get(link)
                assert "ops wants to call <code>deploy</code>" in page.text
                assert "script-src" not in page.headers["content-security-policy"]
                assert ran == []
                assert (await http.post(link, data={"decision": "approve"})).status_code == 200
                while (run := (await http.get(f"/runs/{started['id']}")).json())["status"] not in (
                    "completed",
                    "failed",
                ):
                    await asyncio.sleep(0.02)
                assert run["status"] == "completed"
                described = (await http.get("/openapi.json")).json()["paths"]["/approve/{token}"]
                assert described["post"]["security"] == []
        finally:
            await server.stop(grace=0)
    assert ran == ["prod"]
    assert ApprovalStore(tmp_path / "approvals.db").rows()[0].by == "ann@example.org (link)"
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("hookline")]
    assert ours
    assert not [line for line in ours if link.rpartition("/")[2] in line]


async def test_without_the_option_there_is_no_such_page(tmp_path):
    server = build_server(settings(tmp_path), agent([]))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as http:
            assert (await http.get("/approve/a.b")).status_code == 404
            assert "text/html" not in (await http.get("/approve/a.b")).headers["content-type"]
    finally:
        await server.stop(grace=0)


@pytest.mark.parametrize(
    ("links", "words"),
    [
        (
            {"secret": "env:NOT_SET_ANYWHERE", "webhook": "https://hooks.example.org"},
            "NOT_SET_ANYWHERE, which is not set",
        ),
        ({"secret": SECRET}, "webhook"),
        ({"secret": SECRET, "webhook": "https://hooks.example.org", "peple": []}, "peple"),
    ],
)
def test_wrong_options_are_reported(tmp_path, links, words):
    with pytest.raises(ConfigError, match=words):
        build_server(settings(tmp_path, **links), agent([]))


def test_a_short_secret_is_reported(tmp_path):
    with pytest.raises(ConfigError, match=r"server.approval_links: secret must have at least 16 characters"):
        build_server(settings(tmp_path, secret="short", webhook="https://hooks.example.org"), agent([]))
