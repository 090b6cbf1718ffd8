"""Approval by signed link: real pages on a real port, and a real webhook."""

import asyncio
import json
import os
import re
import shutil
import time
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import msgspec
import pytest

from hookline import Agent, ScriptedModel, call, reply, tool
from hookline._kernel.payloads import ApprovalRequest, Question, ToolCallRequest
from hookline._kernel.values import Ids
from hookline._net.signatures import HEADER, verify
from hookline.errors import RegistrationError
from hookline.hooks import ApprovalLinks, ApprovalsHook, LinkError, PlanModeHook
from hookline.hooks._support.link_page import POLICY
from hookline.records.labels import is_person
from hookline.stores import ApprovalPolicy, ApprovalStore, ApproverRights, CallPattern

from ..waiting import wait_until

SECRET = "a secret that nobody can guess"
NASTY = {"path": "a.txt", "text": "</pre><script>alert(1)</script>\u202e\x00 `x` &amp; ```\nline"}


@pytest.fixture
def store(tmp_path):
    store = ApprovalStore(tmp_path / "approvals.db")
    yield store
    store.close()


@pytest.fixture
def links(store):
    return ApprovalLinks(store, secret=SECRET)


def waiting(store, seconds=600.0, **arguments):
    """A call that waits for approval."""
    request = ToolCallRequest("c1", "write", arguments or {"path": "a.txt"})
    asked = ApprovalRequest(request, (Question("Really?", "Careful", "it writes"),), request.digest)
    return store.ask(asked, seconds=seconds, ids=Ids("run_1", agent="ops"))


@asynccontextmanager
async def pages(links, **options):
    async with links.serve(port=0, **options) as server, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        yield server, http


def approve(**more):
    return {"decision": "approve", **more}


async def test_the_page_shows_the_exact_call_and_a_person_approves_it(links, store):
    row = waiting(store, **NASTY)
    async with pages(links) as (_, http):
        url = links.link(row, "ann@example.org").url
        page = await http.get(url)
        assert page.status_code == 200
        shown = page.text
        assert "ops wants to call <code>write</code>" in shown
        assert "Careful: Really? (it writes)" in shown
        assert "<script" not in shown
        text = re.search(r"<pre>(.*)</pre>", shown, re.DOTALL)[1]
        assert r"\u202e\u0000 `x` &amp;amp; ```\nline" in text
        done = await http.post(url, data=approve())
        assert (done.status_code, "This call was approved" in done.text) == (200, True)
    decided = store.find(row.id)
    assert (decided.status, decided.by, decided.remember) == ("approved", "ann@example.org (link)", "once")
    assert is_person(decided.by)


async def test_opening_a_link_decides_nothing(links, store):
    row = waiting(store)
    async with pages(links) as (_, http):
        url = links.link(row).url
        for method in ("GET", "HEAD", "GET"):
            assert (await http.request(method, url)).status_code == 200
        for method in ("PUT", "DELETE", "PATCH"):
            assert (await http.request(method, url)).status_code == 405
        assert (await http.get(f"{url}?decision=approve")).status_code == 200
    assert store.find(row.id).status == "pending"


async def test_a_denial_carries_its_reason_to_the_store(links, store):
    row = waiting(store)
    async with pages(links) as (_, http):
        done = await http.post(links.link(row).url, data={"decision": "deny", "message": "use <b>b.txt</b>"})
        assert "Reason: use &lt;b&gt;b.txt&lt;/b&gt;" in done.text
    decided = store.find(row.id)
    assert (decided.status, decided.by, decided.message) == ("denied", "link", "use <b>b.txt</b>")
    assert is_person(decided.by)


async def test_a_link_works_once_and_the_second_use_shows_who_decided(links, store):
    row = waiting(store)
    async with pages(links) as (_, http):
        ann, ben = links.link(row, "ann").url, links.link(row, "ben").url
        await http.post(ann, data={"decision": "deny"})
        for url in (ann, ben):
            again = await http.post(url, data=approve())
            assert again.status_code == 409
            assert "too late" in again.text
            assert "decided by ann (link)" in again.text
            page = await http.get(url)
            assert "This call was denied" in page.text
            assert "<form" not in page.text
            assert "a.txt" not in page.text
    assert store.find(row.id).status == "denied"


async def test_two_people_at_once_decide_once(links, store):
    row = waiting(store)
    async with pages(links) as (_, http):
        urls = [links.link(row, f"p{n}").url for n in range(8)]
        answers = await asyncio.gather(*(http.post(url, data=approve()) for url in urls))
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7


CHANGES = {
    "another call's payload": lambda payload, mac, other: f"{other[0]}.{mac}",
    "another call's signature": lambda payload, mac, other: f"{payload}.{other[1]}",
    "one changed letter": lambda payload, mac, other: f"{payload}.{'A' if mac[0] != 'A' else 'B'}{mac[1:]}",
    "cut": lambda payload, mac, other: f"{payload}.{mac[:-1]}",
    "longer": lambda payload, mac, other: f"{payload}.{mac}A",
    "no signature": lambda payload, mac, other: payload,
    "empty signature": lambda payload, mac, other: f"{payload}.",
    "not base64": lambda payload, mac, other: "!.x",
    "not JSON": lambda payload, mac, other: f"AAAA.{mac}",
}


def token_of(link):
    return link.url.rpartition("/")[2]


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_changed_token_is_not_valid(links, store, change):
    links.url = "http://x.example"
    row, other = waiting(store), waiting(store, path="other.txt")
    token = change(*token_of(links.link(row)).split("."), token_of(links.link(other)).split("."))
    with pytest.raises(LinkError) as caught:
        links.find(token)
    assert caught.value.code == "invalid"


async def test_a_link_that_is_not_valid_gets_a_clear_page_and_decides_nothing(links, store):
    row = waiting(store)
    async with pages(links) as (_, http):
        for url in (links.link(row).url[:-1], f"{links.url}/approve/%00%ff", f"{links.url}/approve/{'x' * 5000}"):
            for answer in (await http.get(url), await http.post(url, data=approve())):
                assert answer.status_code == 404
                assert "This link is not valid" in answer.text
                assert "a.txt" not in answer.text
    assert store.find(row.id).status == "pending"


async def test_a_link_is_bound_to_the_digest_of_the_call(links, store):
    row = waiting(store)
    links.url = "http://x.example"
    token = token_of(links.link(msgspec.structs.replace(row, digest="0" * 64)))
    with pytest.raises(LinkError, match="was changed") as caught:
        links.find(token)
    assert caught.value.code == "invalid"


async def test_an_expired_link_gets_a_clear_page_and_decides_nothing(links, store):
    row = waiting(store)
    async with pages(links) as (_, http):
        url = links.link(msgspec.structs.replace(row, expires=time.time() - 5)).url
        for answer in (await http.get(url), await http.post(url, data=approve())):
            assert answer.status_code == 410
            assert "This link has expired" in answer.text
    assert store.find(row.id).status == "pending"


async def test_a_call_that_no_longer_waits_says_so(links, store):
    row = waiting(store)
    store.end_pending(row.id, "cancelled")
    async with pages(links) as (_, http):
        url = links.link(row).url
        assert "no longer waits" in (await http.get(url)).text
        assert (await http.post(url, data=approve())).status_code == 409


@pytest.mark.parametrize(
    "body",
    [
        {"data": {}},
        {"data": {"decision": "maybe"}},
        {"json": {"decision": "approve"}},
        {"content": b"decision=approve"},
        {"content": b"decision=approve&x=%ff\xff", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        {"data": {f"f{n}": "x" for n in range(20)} | {"decision": "approve"}},
    ],
)
async def test_a_form_of_another_shape_decides_nothing(links, store, body):
    row = waiting(store)
    async with pages(links) as (_, http):
        answer = await http.post(links.link(row).url, **body)
    assert answer.status_code == 400
    assert "Nothing was decided" in answer.text
    assert store.find(row.id).status == "pending"


async def test_a_page_of_another_site_cannot_decide(links, store):
    row = waiting(store)
    async with pages(links) as (_, http):
        answer = await http.post(links.link(row).url, data=approve(), headers={"Origin": "https://evil.example"})
        assert answer.status_code == 403
    assert store.find(row.id).status == "pending"


async def test_the_pages_have_a_strict_policy_and_are_not_stored(links, store):
    async with pages(links) as (_, http):
        for url in (links.link(waiting(store)).url, f"{links.url}/approve/x.y"):
            headers = (await http.get(url)).headers
            assert headers["content-security-policy"] == POLICY
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "same-origin"
            assert headers["x-robots-tag"] == "noindex, nofollow"
    for word in ("default-src 'none'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert word in POLICY
    assert "unsafe" not in POLICY
    assert "script" not in POLICY


async def test_a_secret_can_be_replaced_while_links_are_on_their_way(store):
    row = waiting(store)
    old = ApprovalLinks(store, secret=SECRET, url="http://x.example")
    token = token_of(old.link(row))
    new = ApprovalLinks(store, secret=["a new secret of this length", SECRET], url="http://x.example")
    assert new.find(token)[0].id == row.id
    with pytest.raises(LinkError):
        old.find(token_of(new.link(row)))


async def test_a_broken_store_is_reported_and_decides_nothing(links, store, tmp_path):
    row = waiting(store)
    async with pages(links) as (_, http):
        url = links.link(row).url
        store.close()
        for path in tmp_path.glob("approvals.db*"):
            path.write_bytes(b"not a database" * 100)
        answer = await http.get(url)
    assert answer.status_code == 503
    assert "Try again soon" in answer.text
    assert str(tmp_path) not in answer.text


# sending


class Webhook:
    """A server that records what is posted to it, and answers with these statuses first."""

    def __init__(self, *statuses):
        self.received, self.statuses = [], list(statuses)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.received.append((dict(self.headers), body))
                self.send_response(owner.statuses.pop(0) if owner.statuses else 204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        self.thread = Thread(target=self.server.serve_forever, args=(0.01,))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


async def test_an_agent_waits_until_a_person_uses_the_link_of_the_webhook(store):
    ran = []

    @tool
    def deploy(env: str) -> str:
        """Deploy."""
        ran.append(env)
        return f"deployed to {env}"

    with Webhook() as webhook:
        links = ApprovalLinks(store, secret=SECRET, webhook=webhook.url, people=["ann@example.org", "ben@example.org"])
        hooks = [PlanModeHook(["deploy"]), ApprovalsHook(store, notify=links)]
        turns = [call("deploy", env="prod"), reply("out")]
        agent = Agent("ops", llm=ScriptedModel(turns), tools=[deploy], hooks=hooks)
        async with pages(links) as (_, http):
            run = asyncio.create_task(agent.arun("Ship it."))
            await wait_until(lambda: len(webhook.received) == 2)
            assert ran == []
            sent = {json.loads(body)["to"]: json.loads(body) for _, body in webhook.received}
            await http.post(sent["ben@example.org"]["link"], data=approve())
            result = await run
    assert ran == ["prod"]
    assert result.messages[2].content == "deployed to prod"
    assert store.rows()[0].by == "ben@example.org (link)"
    for headers, body in webhook.received:
        verify([SECRET], headers[HEADER], body)
        message = json.loads(body)
        assert message["link"] in message["text"]
        assert "prod" not in body.decode()  # arguments stay on the page
        assert message["subject"] == "ops wants to call deploy"
    assert len({headers["Idempotency-Key"] for headers, _ in webhook.received}) == 2


async def test_a_webhook_that_fails_is_tried_again_and_one_that_refuses_is_not(store, monkeypatch, caplog):
    monkeypatch.setattr("hookline.hooks.approval_links.RETRY_DELAYS", (0.01, 0.01))
    row = waiting(store)
    with Webhook(503, 429) as webhook:
        await ApprovalLinks(store, secret=SECRET, url="http://x.example", webhook=webhook.url)(row)
        assert len(webhook.received) == 3
    with Webhook(400) as webhook:
        with pytest.raises(Exception, match="status 400"):
            await ApprovalLinks(store, secret=SECRET, url="http://x.example", webhook=webhook.url)(row)
        assert len(webhook.received) == 1
    assert "/approve/" not in caplog.text


async def test_your_own_function_gets_the_link(store):
    sent = []

    async def mail(link):
        sent.append(link)

    row = waiting(store)
    await ApprovalLinks(store, secret=SECRET, url="https://agents.example.org/x/", send=mail, people=["ann"])(row)
    (link,) = sent
    assert link.url.startswith("https://agents.example.org/x/approve/")
    assert (link.to, link.row.id) == ("ann", row.id)
    assert link.url in link.text


@pytest.mark.parametrize("name", ["a" * 200, "ä" * 100, '"' * 200])
async def test_the_link_of_the_longest_name_can_be_used(store, name):
    links = ApprovalLinks(store, secret=SECRET, url="https://agents.example.org", people=[name])
    row = waiting(store)
    token = links.link(row, name).url.rpartition("/")[2]
    assert links.find(token) == (row, name)


async def test_links_need_an_address(links, store):
    with pytest.raises(LinkError, match="set url"):
        links.link(waiting(store))


async def test_the_name_of_the_public_address_is_accepted(store):
    links = ApprovalLinks(store, secret=SECRET, url="https://agents.example.org")
    token = token_of(links.link(waiting(store)))
    async with pages(links) as (server, http):
        for host, status in (("agents.example.org", 200), ("evil.example", 421)):
            answer = await http.get(f"{server.url}/approve/{token}", headers={"Host": host})
            assert answer.status_code == status


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"secret": "short"}, "at least 16 characters"),
        ({"secret": []}, "at least 16 characters"),
        ({"secret": 5}, "at least 16 characters"),
        ({"secret": SECRET, "store": 5}, "store must be a SQLite file"),
        ({"secret": SECRET, "url": 5}, "url is not like"),
        ({"secret": SECRET, "webhook": 5}, "webhook is not like"),
        ({"secret": SECRET, "people": 5}, "people must be a list"),
        ({"secret": SECRET, "url": "agents"}, "url is not like"),
        ({"secret": SECRET, "webhook": "ftp://x"}, "webhook"),
        ({"secret": SECRET, "people": "ann"}, "people must be a list"),
        ({"secret": SECRET, "people": ["a\nb"]}, "people must be a list"),
        ({"secret": SECRET, "people": ["ä" * 101]}, "people must be a list"),
        ({"secret": SECRET, "send": 5}, "send must be an async function"),
    ],
)
def test_invalid_options_are_rejected(store, options, words):
    with pytest.raises(RegistrationError, match=words) as caught:
        ApprovalLinks(**{"store": store, **options})
    assert SECRET not in str(caught.value)


# in a browser

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: install it (apt install chromium), or set CHROMIUM")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_browser_shows_the_page_and_sends_the_decision(links, store, scheme):
    playwright = pytest.importorskip("playwright.async_api", reason="needs: pip install playwright")
    row = waiting(store, **NASTY, note="a long line " * 30)
    async with links.serve(port=0), playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = await browser.new_page(color_scheme=scheme, viewport={"width": 360, "height": 740})
        problems = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        await page.goto(links.link(row, "ann").url)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert await page.evaluate("getComputedStyle(document.querySelector('main')).borderRadius") == "12.8px"
        assert "</pre><script>alert(1)</script>" in await page.inner_text("pre")
        await page.fill("input[name=message]", "use b.txt")
        await page.click("button.no")
        assert "This call was denied" in await page.inner_text("main")
        await browser.close()
    assert problems == []
    decided = store.find(row.id)
    assert (decided.status, decided.by, decided.message) == ("denied", "ann (link)", "use b.txt")


async def test_a_link_obeys_the_policy_and_says_who_is_still_needed(tmp_path):
    rights = {"can_approve": (CallPattern(tool="write"),)}
    people = {name: ApproverRights(by=(f"{name}@example.org (link)",), **rights) for name in ("ann", "ben")}
    policy = ApprovalPolicy(people=people, four_eyes=(CallPattern(),))
    store = ApprovalStore(tmp_path / "approvals.db", policy=policy)
    row = waiting(store)
    links = ApprovalLinks(store, secret=SECRET)
    async with pages(links) as (_, http):
        ann, ben, eve = (links.link(row, f"{name}@example.org").url for name in ("ann", "ben", "eve"))
        assert "Two people must approve it: ann or ben." in (await http.get(ann)).text
        refused = await http.post(eve, data=approve())
        assert (refused.status_code, "is not in people of the approval policy" in refused.text) == (403, True)
        half = await http.post(ann, data=approve())
        assert (half.status_code, "Your approval was recorded" in half.text) == (200, True)
        assert "One more person must approve it: ben." in half.text
        assert (await http.post(ann, data=approve())).status_code == 403
        assert "This call was approved" in (await http.post(ben, data=approve())).text
    assert store.find(row.id).by == "ann@example.org (link) and ben@example.org (link)"
