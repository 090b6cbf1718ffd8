"""Approvals in a Slack conversation, for agents that run elsewhere."""

import asyncio
import subprocess
import sys

import httpx
import pytest

from hookline import Agent, ScriptedModel, call, reply, tool
from hookline._web.http_server import HttpServer
from hookline.channels import SlackApprover, SlackChannel
from hookline.channels.protocol import ChannelError
from hookline.hooks import ApprovalsHook, PlanModeHook, watch_approvals
from hookline.records.labels import is_person
from hookline.stores import ApprovalPolicy, ApprovalStore, ApproverRights, CallPattern

from ..waiting import wait_until
from .slack_api import ADA, APP_TOKEN, BEN, CHANNEL, SIGNING_SECRET, TOKEN, SlackApi, buttons, shown, signed
from .test_slack import APPROVE, DENY, SESSION, request_of

pytestmark = pytest.mark.slow  # real processes and servers


API = SlackApi


class Setup:
    """An agent that deploys, and an approver on Slack."""

    def __init__(self, folder, channel, **options):
        self.ran = ran = []

        @tool
        def deploy(env: str) -> str:
            """Deploy."""
            ran.append(env)
            return f"deployed to {env}"

        self.tool = deploy
        self.approver = SlackApprover(
            str(folder / "approvals.db"), channel, chat=CHANNEL, **{"approve": [ADA], **options}
        )
        self.store = self.approver.store

    def start(self, *envs):
        turns = [*(call("deploy", env=env) for env in envs), reply("out")]
        hooks = [PlanModeHook(["deploy"]), ApprovalsHook(self.store, notify=self.approver)]
        agent = Agent("ops", llm=ScriptedModel(turns), tools=[self.tool], hooks=hooks)
        return asyncio.create_task(agent.arun("Ship it."))


@pytest.fixture
async def setup(api, tmp_path):
    setup = Setup(tmp_path, SlackChannel(token=TOKEN, app_token=APP_TOKEN, base_url=api.url))
    async with setup.approver:
        await wait_until(lambda: setup.approver.health().ok)
        yield setup


async def test_a_person_approves_a_call_of_an_agent_that_runs_elsewhere(api, setup):
    run = setup.start("prod")
    ts = await request_of(api, CHANNEL)
    message = api.chats[CHANNEL][ts]
    assert "ops wants to call `deploy` with" in shown(message)
    assert '{"env": "prod"}' in shown(message)
    assert "Without a decision it does not run." in shown(message)
    assert "/approve" not in shown(message)
    assert setup.ran == []
    await api.press(CHANNEL, ts, APPROVE)
    assert (await run).messages[2].content == "deployed to prod"
    assert setup.ran == ["prod"]
    await wait_until(lambda: "deploy runs (approved by @UADA)." in shown(message))
    assert not buttons(message)
    row = setup.store.rows()[0]
    assert row.by == f"slack:{ADA}"
    assert is_person(row.by)
    await wait_until(lambda: api.whispers)
    assert api.whispers[0][0] == ADA


async def test_others_get_a_private_refusal(api, setup):
    run = setup.start("prod")
    ts = await request_of(api, CHANNEL)
    await api.press(CHANNEL, ts, APPROVE, user=BEN)
    await wait_until(lambda: api.whispers)
    assert api.whispers[0][:2] == (BEN, "You are not allowed to decide about calls here.")
    assert setup.store.rows()[0].status == "pending"
    await api.press(CHANNEL, ts, DENY)
    await run
    assert setup.ran == []


async def test_a_button_is_bound_to_the_digest_of_its_call(api, setup):
    run = setup.start("prod")
    ts = await request_of(api, CHANNEL)
    digest = setup.store.rows()[0].digest
    body = api.press_body(CHANNEL, ts, APPROVE)
    body["actions"][0]["value"] = body["actions"][0]["value"].replace(digest, "0" * len(digest))
    await api.envelope("interactive", body)
    await wait_until(lambda: api.whispers)
    assert "out of date" in api.whispers[0][1]
    assert setup.ran == []
    run.cancel()
    await asyncio.wait([run])


async def test_a_decision_for_the_session_covers_the_next_call(api, setup):
    run = setup.start("prod", "prod")
    await api.press(CHANNEL, await request_of(api, CHANNEL), SESSION)
    await run
    assert setup.ran == ["prod", "prod"]
    assert len(api.chats[CHANNEL]) == 1


async def test_a_call_that_is_decided_elsewhere_shows_the_outcome(api, setup):
    run = setup.start("prod")
    ts = await request_of(api, CHANNEL)
    old = api.press_body(CHANNEL, ts, APPROVE)
    row = setup.store.rows()[0]
    setup.store.decide(row.id, decision="deny", digest=row.digest, by="ann@terminal")
    await run
    await wait_until(lambda: "deploy does not run (denied by ann@terminal)." in shown(api.chats[CHANNEL][ts]))
    await api.envelope("interactive", old)
    await wait_until(lambda: api.whispers)
    assert "out of date" in api.whispers[0][1]
    assert setup.ran == []


@pytest.mark.parametrize("by", ["user:U0ADA", "webhook:U0ADA"])
async def test_a_decision_elsewhere_is_not_shown_as_that_of_a_member(api, setup, by):
    run = setup.start("prod")
    ts = await request_of(api, CHANNEL)
    row = setup.store.rows()[0]
    setup.store.decide(row.id, decision="deny", digest=row.digest, by=by)
    await run
    await wait_until(lambda: f"deploy does not run (denied by {by})." in shown(api.chats[CHANNEL][ts]))


async def test_arguments_that_are_too_long_are_left_to_an_operator(api, setup):
    run = setup.start("x" * 31_000)
    await wait_until(lambda: api.texts(CHANNEL))
    assert "An operator must approve it" in api.texts(CHANNEL)[0]
    assert not any(buttons(message) for message in api.chats[CHANNEL].values())
    run.cancel()
    await asyncio.wait([run])
    assert setup.ran == []


async def test_a_request_is_sent_again_after_a_failure(api, setup):
    api.fail("chat.postMessage", "internal_error", 500)
    run = setup.start("prod")
    await api.press(CHANNEL, await request_of(api, CHANNEL), APPROVE)
    await run
    assert setup.ran == ["prod"]


async def test_calls_of_other_programs_are_asked_about_too(api, setup, tmp_path):
    program = f"""
from hookline import Agent, ScriptedModel, call, reply, tool
from hookline.hooks import ApprovalsHook, PlanModeHook

@tool
def deploy(env: str) -> str:
    '''Deploy.'''
    open({str(tmp_path / "ran")!r}, "w").close()
    return "deployed"

hooks = [PlanModeHook(["deploy"]), ApprovalsHook({str(tmp_path / "approvals.db")!r})]
Agent("ops", llm=ScriptedModel([call("deploy", env="prod"), reply("out")]), tools=[deploy], hooks=hooks).run("Ship it.")
"""
    watching = asyncio.create_task(watch_approvals(setup.store, setup.approver))
    other = subprocess.Popen([sys.executable, "-c", program])
    try:
        ts = await request_of(api, CHANNEL)
        assert not (tmp_path / "ran").exists()
        await api.press(CHANNEL, ts, APPROVE)
        await asyncio.to_thread(other.wait, 30)
    finally:
        other.kill()
        other.wait()
    assert (tmp_path / "ran").exists()
    await wait_until(lambda: not buttons(api.chats[CHANNEL][ts]))
    watching.cancel()
    await asyncio.wait([watching])


async def test_it_works_over_http(api, tmp_path):
    setup = Setup(tmp_path, SlackChannel(token=TOKEN, signing_secret=SIGNING_SECRET, base_url=api.url))
    server = HttpServer([setup.approver], port=0, grace=1.0)
    async with setup.approver, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        await server.start()
        await wait_until(lambda: setup.approver.health().ok)
        run = setup.start("prod")
        press = api.press_body(CHANNEL, await request_of(api, CHANNEL), APPROVE)
        url = f"{server.url}/slack/slack"
        assert (await http.post(url, **signed(press, form=True, secret="0" * 32))).status_code == 401
        assert setup.ran == []
        assert (await http.post(url, **signed(press, form=True))).status_code == 200
        await run
        await server.stop()
    assert setup.ran == ["prod"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"approve": []}, "nobody may decide"), ({"chat": "#general"}, "not the id of a Slack conversation")],
)
def test_invalid_options_are_rejected(tmp_path, options, words):
    channel = SlackChannel(token=TOKEN, app_token=APP_TOKEN)
    with pytest.raises(ChannelError, match=words):
        SlackApprover(ApprovalStore(tmp_path / "a.db"), channel, **{"chat": CHANNEL, "approve": [ADA], **options})


async def test_buttons_obey_the_policy_of_the_run_that_asks(api, tmp_path):
    people = {name: ApproverRights(by=(f"slack:{name}",), can_approve=(CallPattern(),)) for name in (ADA, BEN)}
    policy = ApprovalPolicy(people=people, four_eyes=(CallPattern(tool="deploy"),))
    channel = SlackChannel(token=TOKEN, app_token=APP_TOKEN, base_url=api.url)
    setup = Setup(tmp_path, channel, approve=["*"])
    setup.store.policy = policy
    async with setup.approver:
        await wait_until(lambda: setup.approver.health().ok)
        run = setup.start("prod")
        ts = await request_of(api, CHANNEL)
        assert "Two people must approve it" in shown(api.chats[CHANNEL][ts])
        await api.press(CHANNEL, ts, APPROVE, user="UEVE")
        await wait_until(lambda: any("is not in people" in text for _, text, *_ in api.whispers))
        await api.press(CHANNEL, ts, APPROVE)
        await wait_until(lambda: any("One more person" in text for _, text, *_ in api.whispers))
        assert setup.ran == []
        await api.press(CHANNEL, ts, APPROVE, user=BEN)
        assert (await run).messages[2].content == "deployed to prod"
