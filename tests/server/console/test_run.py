"""The page of one run."""

import asyncio
import html
import json
import re
import time
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from hookline import BEFORE_TOOL, Agent, ScriptedModel, call, guard, reply, tool
from hookline.config.settings import Settings
from hookline.explain.from_events import EventsView
from hookline.models import ModelResponse
from hookline.records.hook import RecordHook
from hookline.server import Caller, asgi
from hookline.server.console.run import RunSections
from hookline.stores.runs import RunRecord
from hookline.tape import TapeHook

from .asking import cleaner, field, finished, waiting_call
from .rig import console
from .working import HOSTILE, SECRET, Work

RIGHTS = ("read", "run", "approve")
JSON = {"accept": "application/json"}
SLOW = [call("slow", what="the work"), reply("It is done.")]


async def start(browser, task="Do it", **fields):
    return (await browser.post("/runs", json={"task": task, **fields})).json()["id"]


async def page_of(browser, run, query=""):
    answer = await browser.get(f"/console/runs/{run}{query}")
    assert answer.status_code == 200, answer.text
    return answer.text


async def executes(made, browser, run):
    """Wait until the run executes its slow tool, and this is stored."""
    while "tool_started" not in (await browser.get(f"/runs/{run}/events", headers=JSON)).text:
        pass


def text_of(html):
    """Return the words of HTML, without tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def row(html, key):
    """Return the HTML of one row of the tree."""
    return html.split(f'id="line-{key}"')[1].split('id="line-')[0]


async def call_of(browser, run, key, query=""):
    """Return the HTML of one call of a run in full."""
    answer = await browser.get(f"/console/runs/{run}/call?call={key}{query}", headers=JSON)
    assert answer.status_code == 200, answer.text
    return answer.json()["run-drawer"]


def gates(html):
    """Return the gates of the hook line of a row, as what they did and their titles. One that passed has no title."""
    return re.findall(r'<(?:g|circle) class="g (\w+) s-?\d+"[^>]*>(?:<title>([^<]*)</title>)?', html)


async def test_each_call_is_a_row_with_its_hook_line_and_its_verdict(tmp_path):
    async with console(tmp_path, Work().agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await finished(browser, run)
        html = await page_of(browser, run)
        blocked, changed = row(html, "1.1"), row(html, "1.2")
        assert gates(blocked)[0] == (
            "blocked",
            "no_deleting blocked: rule 3 &lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(2)&gt;",
        )
        assert 'aria-label="blocked by no_deleting"' in blocked
        assert 'class="call no"' in blocked  # the line is cut: the tool did not run
        assert text_of(blocked).startswith("> delete a.txt")
        assert "rule 3" in text_of(blocked)
        assert [state for state, _ in gates(changed)][:2] == ["changed", "changed"]
        assert 'aria-label="changed by tidy; changed by hide_cards"' in changed
        assert "430" in text_of(row(html, "1"))
        assert "$0.0020" in text_of(row(html, "1"))
        assert "The model replied without calling a tool." in text_of(html)


async def test_a_hook_that_let_everything_pass_is_a_hollow_gate(tmp_path):
    @guard(BEFORE_TOOL, priority=90)
    def earlier(ctx, request):
        return None

    async with console(tmp_path, Work(hooks=[earlier]).agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await finished(browser, run)
        assert [state for state, _ in gates(row(await page_of(browser, run), "1.1"))][:2] == ["passed", "blocked"]
        assert "earlier passed" in text_of(await call_of(browser, run, "1.1"))


async def test_of_many_rules_those_that_spoke_have_a_column_and_the_others_are_one_gate(tmp_path):
    silent = [guard(BEFORE_TOOL, name=f"rule_{n}")(lambda ctx, request: None) for n in range(20)]
    async with console(tmp_path, Work(hooks=silent).agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await finished(browser, run)
        html = await page_of(browser, run)
        assert re.findall(r'aria-label="(rule_\d+|no_deleting|hide_cards|tidy)"', html) == [
            "tidy",
            "no_deleting",
            "hide_cards",
        ]
        (folded,) = [title for state, title in gates(row(html, "1.2")) if state == "folded" and "rule_0" in title]
        assert "rule_19" in folded


async def test_one_call_in_full_folds_the_rules_that_let_it_pass_if_there_are_many(tmp_path):
    silent = [guard(BEFORE_TOOL, name=f"rule_{n}")(lambda ctx, request: None) for n in range(20)]
    async with console(tmp_path, Work(hooks=silent).agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await finished(browser, run)
        drawer = await call_of(browser, run, "1.2")
        (folded,) = re.findall(r"<details.*?</details>", drawer, re.DOTALL)
        assert "hooks passed" in text_of(folded)
        assert all(f"rule_{n} passed" in text_of(folded) for n in range(20))
        assert "tidy changed" in text_of(drawer.replace(folded, ""))


async def test_one_call_in_full_has_its_arguments_verdicts_and_what_the_model_reads(tmp_path):
    async with console(tmp_path, Work().agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await finished(browser, run)
        words = text_of(await call_of(browser, run, "1.1"))
        for each in ("path a.txt", "no_deleting blocked before_tool · guard", "rule 3", "The tool did not run"):
            assert each in words
        assert "The model reads Nothing is deleted here." in words
        answer = await browser.get(f"/console/runs/{run}/call?call=1.1")  # without a script
        assert answer.headers["location"] == f"/console/runs/{run}?call=1.1"
        assert "The tool did not run" in await page_of(browser, run, "?call=1.1")
        assert (await browser.get(f"/console/runs/{run}/call?call=9.9", headers=JSON)).status_code == 404


async def test_what_a_hook_changed_in_the_arguments_is_shown_as_a_difference(tmp_path):
    async with console(tmp_path, Work().agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await finished(browser, run)
        html = await call_of(browser, run, "1.2")
        assert '<div class="label">arguments.name</div>' in html
        assert "<del> Joe </del><ins>Joe</ins>" in html


async def test_a_subagent_is_inside_the_call_that_started_it(tmp_path):
    async with console(tmp_path, Work().agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await finished(browser, run)
        html = await page_of(browser, run)
        assert '<span class="to">helper</span>' in row(html, "2.1")
        assert "read_card Jane" in text_of(row(html, "2.1.0.1.1"))
        assert "Jane is fine." in text_of(row(html, "2.1.0.2"))


async def test_a_failed_run_says_in_which_step_it_failed_and_why(tmp_path):
    def boom(request):
        raise RuntimeError("the model is down")

    work = Work([call("read_card", name="Joe"), boom])
    async with console(tmp_path, work.agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await finished(browser, run)
        html = await page_of(browser, run)
        assert '<p class="why failed">It failed in step 2: RuntimeError: the model is down</p>' in html


async def test_what_hooks_hid_is_in_the_record_for_admins_only(tmp_path):
    work = Work(hooks=[RecordHook(tmp_path / "records", redact=False)])
    async with console(tmp_path, work.agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await finished(browser, run)
        html = await page_of(browser, run)
        assert SECRET not in html
        assert "from=record" not in html
        answer = await browser.get(f"/console/runs/{run}?from=record")
        assert answer.status_code == 403
        assert SECRET not in answer.text
        answer = await browser.get(f"/console/runs/{run}/call?call=1.2&from=record", headers=JSON)
        assert answer.status_code == 403
        assert SECRET not in answer.text
        async with made.logged_in("read", "admin") as admin:
            assert "from=record" in await page_of(admin, run)
            html = await call_of(admin, run, "1.2", "&from=record")
            assert f"<del>{SECRET}</del><ins>[card]</ins>" in html


async def test_the_record_shows_all_hooks_of_a_point_in_firing_order(tmp_path):
    @guard(BEFORE_TOOL, tools="delete", priority=90)
    def earlier(ctx, request):
        return None

    @guard(BEFORE_TOOL, tools="delete", priority=-10)
    def later(ctx, request):
        return None

    work = Work(hooks=[later, earlier, RecordHook(tmp_path / "records")])
    async with console(tmp_path, work.agent) as made, made.logged_in("read", "run", "admin") as admin:
        run = await start(admin)
        await finished(admin, run)
        html = await page_of(admin, run, "?from=record")
        found = [(state, title.partition(" ")[0]) for state, title in gates(row(html, "1.1"))]
        assert found[:3] == [("passed", ""), ("blocked", "no_deleting"), ("skipped", "later")]
        words = text_of(await call_of(admin, run, "1.1", "&from=record"))
        assert words.index("earlier passed") < words.index("no_deleting blocked") < words.index("later not called")


async def test_a_server_without_records_tells_admins_how_to_keep_them(tmp_path):
    async with console(tmp_path, Work().agent) as made, made.logged_in("read", "run", "admin") as admin:
        run = await start(admin)
        await finished(admin, run)
        assert "<code>--record</code>" in await page_of(admin, run)
        assert (await admin.get(f"/console/runs/{run}?from=record")).status_code == 404
        assert (await admin.get(f"/console/runs/{run}/tape")).status_code == 404


async def test_the_links_on_the_page_of_a_run_without_a_record_lead_somewhere(tmp_path):
    async with (
        console(tmp_path, Work().agent, tapes=tmp_path / "tapes") as made,
        made.logged_in("read", "run", "admin") as admin,
    ):
        run = await start(admin)
        await finished(admin, run)
        page = await page_of(admin, run)
        for link in {html.unescape(each) for each in re.findall(r'href="([^"#]+)"', page) if run in each}:
            assert (await admin.get(link)).status_code == 200, link


async def test_a_run_with_a_tape_has_a_link_to_it_and_is_explained_from_it(tmp_path):
    work = Work(hooks=[TapeHook(tmp_path / "tapes")])
    async with console(tmp_path, work.agent, tapes=tmp_path / "tapes") as made:
        async with made.logged_in("read", "run", "admin") as admin:
            run = await start(admin)
            await finished(admin, run)
            assert f"/console/runs/{run}/tape" in await page_of(admin, run)
            tape = await admin.get(f"/console/runs/{run}/tape")
            assert tape.content == (tmp_path / "tapes" / f"{run}.tape").read_bytes()
            assert "attachment" in tape.headers["content-disposition"]
            html = await page_of(admin, run, "?from=record")
            key = re.search(r'id="row-([\d.]+)"[^>]*><code>read_card', html)[1]
            assert SECRET in await call_of(admin, run, key, "&from=record")
        async with made.logged_in(*RIGHTS) as other:
            assert (await other.get(f"/console/runs/{run}/tape")).status_code == 403


async def test_text_of_a_run_never_becomes_html(tmp_path):
    work = Work(hooks=[RecordHook(tmp_path / "records", redact=False)])
    async with console(tmp_path, work.agent) as made, made.logged_in("read", "run", "admin") as admin:
        run = await start(admin, HOSTILE)
        await finished(admin, run)
        for query in ("", "&from=record"):
            for html in (await page_of(admin, run, f"?call=1.2{query}"), await call_of(admin, run, "1.1", query)):
                assert "<script>alert" not in html
                assert "<img src=x" not in html
                assert "&lt;script&gt;alert(1)" in html


async def test_text_of_a_run_does_not_turn_around_what_is_shown(tmp_path):
    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser, "invoice\u202egnp.exe \u2066x\u2069 \U000e0041 שלום 👩‍💻")
        await finished(browser, run)
        for path in (f"/console/runs/{run}", "/console/runs", "/console/find?text=invoice"):
            html = (await browser.get(path)).text
            assert "invoice\\u202egnp.exe \\u2066x\\u2069 \\U000e0041 שלום 👩‍💻" in html, path
            assert not set("\u202e\u2066\u2069\U000e0041") & set(html), path


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("GET", "?from=record"), ("GET", "/live"), ("POST", "/messages"), ("POST", "/cancel")],
)
async def test_the_run_of_another_caller_does_not_exist(tmp_path, method, path):
    work = Work(SLOW)
    async with console(tmp_path, work.agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        async with made.logged_in(*RIGHTS) as stranger:
            data = {"text": "hello"} if method == "POST" else None
            answer = await stranger.request(method, f"/console/runs/{run}{path}", data=data)
            assert answer.status_code == 404
        assert (await browser.get(f"/runs/{run}")).json()["status"] in ("queued", "running")


async def test_the_page_is_updated_step_by_step_while_the_run_goes_on(tmp_path):
    work = Work(SLOW)
    async with console(tmp_path, work.agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await executes(made, browser, run)
        html = await page_of(browser, run)
        assert f'data-live="/console/runs/{run}/live"' in html
        assert '<span class="v now">runs</span>' in html
        assert "last event" in html
        async with browser.stream("GET", f"/console/runs/{run}/live") as stream:
            found = (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: "))
            first = await anext(found)
            assert {"run-head", "run-actions", "run-strip", "run-cols", "run-step-0", "run-step-1"} <= set(first)
            work.go_on.set()
            later = {}
            while "completed" not in later.get("run-head", "") or "run-step-2" not in later:  # events are stored later
                later |= await anext(found)
            assert 'data-into="run-steps"' in later["run-step-2"]
            assert "It is done." in later["run-step-2"]
            assert "runs</span>" not in later["run-step-1"]
            assert "the work is done" in await call_of(browser, run, "1.1")
        assert 'data-live="/console/live/frame"' in await page_of(browser, run)


async def test_text_is_shown_while_the_model_writes_it(tmp_path):
    go_on = asyncio.Event()

    class Writer(ScriptedModel):
        async def stream(self, request):
            yield "The first words"
            await go_on.wait()
            yield " and the last."
            yield ModelResponse("The first words and the last.")

    async with console(tmp_path, Agent("writer", llm=Writer())) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        async with browser.stream("GET", f"/console/runs/{run}/live") as stream:
            found = (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: "))
            html = ""
            while "The first words" not in html:
                html = (await anext(found)).get("run-step-1", "")
            assert "streaming" in html
            go_on.set()
            while "and the last." not in html or "streaming" in html:
                html = (await anext(found)).get("run-step-1", html)


async def test_a_person_steers_a_run_and_sees_it(tmp_path):
    work = Work(SLOW)
    async with console(tmp_path, work.agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await executes(made, browser, run)
        answer = await browser.post(f"/console/runs/{run}/messages", data={"text": "hurry <b>up</b>"})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/console/runs/{run}")
        answer = await browser.post(f"/console/runs/{run}/messages", data={"text": " "}, headers=JSON)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "write a message for the run first")
        work.go_on.set()
        await finished(browser, run)
        assert "A person said hurry &lt;b&gt;up&lt;/b&gt;" in text_of(await page_of(browser, run))
        answer = await browser.post(f"/console/runs/{run}/messages", data={"text": "late"}, headers=JSON)
        assert answer.status_code == 409


async def test_a_person_cancels_a_run_and_says_why(tmp_path):
    async with console(tmp_path, Work(SLOW).agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await executes(made, browser, run)
        answer = await browser.post(f"/console/runs/{run}/cancel", data={"reason": "no longer needed"}, headers=JSON)
        assert (answer.status_code, answer.json()) == (200, {})
        assert (await finished(browser, run))["status"] == "cancelled"
        html = text_of(await page_of(browser, run))
        assert "The run was cancelled: no longer needed" in html
        assert "Cancel the run" not in html


async def test_without_the_right_to_run_there_are_no_forms(tmp_path):
    work = Work(SLOW)
    async with console(tmp_path, work.agent) as made, made.logged_in("run", "admin") as owner:
        run = await start(owner)
        async with made.logged_in("read", "admin") as reader:
            await executes(made, reader, run)
            assert "<form" not in (await page_of(reader, run)).partition("<main")[2]  # above it is the one to log out
            answer = await reader.post(f"/console/runs/{run}/cancel", data={"reason": "x"})
            assert answer.status_code == 403


async def test_a_call_that_nobody_answered_no_longer_looks_as_if_it_waits(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        run, _ = await waiting_call(made, browser)
        while "waits for approval" not in (html := await page_of(browser, run)):  # the page has what is stored
            await asyncio.sleep(0.01)
        assert "waits" in [state for state, _ in gates(row(html, "1.1"))]
        await browser.post(f"/console/runs/{run}/cancel", data={"reason": "too late"})
        await finished(browser, run)
        found = row(await page_of(browser, run), "1.1")
        assert "unanswered" in [state for state, _ in gates(found)]
        assert 'aria-label="asked without answer by careful"' in found
        assert "careful files matter · cancelled" in text_of(found)
        drawer = await call_of(browser, run, "1.1")
        assert "careful asked without answer" in text_of(drawer)


async def test_the_strip_of_a_run_that_goes_on_reaches_to_the_present(tmp_path, monkeypatch):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        run, _ = await waiting_call(made, browser)
        monkeypatch.setattr("hookline.server.console.run.time", SimpleNamespace(time=lambda: time.time() + 100))
        strip = (await page_of(browser, run)).partition('id="run-strip"')[2].partition("</section>")[0]
        (folded,) = re.findall(r"<title>waited ([^<]*) for a person", strip)
        assert folded.startswith("1 min 4")


async def test_a_waiting_call_is_decided_on_the_page_of_its_run(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        run, waiting = await waiting_call(made, browser)
        while "waits for approval" not in (html := await page_of(browser, run)):  # the page has what is stored
            await asyncio.sleep(0.01)
        assert 'data-into="run-asks"' in html
        data = {name: field(html, name) for name in ("decision", "digest", "next")}
        answer = await browser.post(f"/console/approvals/{waiting.id}", data=data)
        assert answer.headers["location"] == f"/console/runs/{run}"
        await finished(browser, run)
        html = text_of(row(await page_of(browser, run), "1.1"))
        assert re.search(r"careful files matter · approved by key key 0", html)
        html = text_of(await call_of(browser, run, "1.1"))
        assert "approved by key key 0" in html
        assert "a.txt is gone" in html


async def test_the_runs_of_a_conversation_lead_to_one_another(tmp_path):
    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as browser:
        runs = []
        for task in ("first", "second"):
            runs.append(await start(browser, task, session="talk"))
            await finished(browser, runs[-1])
        await start(browser, "another", session="other")
        html = await page_of(browser, runs[1])
        assert "Conversation, 2 runs" in html
        assert f'href="/console/runs/{runs[0]}">first</a>' in html
        assert "another" not in html


async def test_a_long_run_is_shown_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.server.console.run.MAX_STEPS", 3)
    turns = [*(call("read_card", name=f"Joe {n}") for n in range(6)), reply("done")]
    async with console(tmp_path, Work(turns).agent) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser)
        await finished(browser, run)
        html = await page_of(browser, run)
        assert re.findall(r'id="run-step-(\d+)"', html) == ["5", "6", "7"]
        assert 'href="?first=2"' in html
        html = await page_of(browser, run, "?first=2")
        assert re.findall(r'id="run-step-(\d+)"', html) == ["2", "3", "4"]
        assert 'href="?first=0"' in html
        assert 'href="?first=5"' in html


async def test_the_page_of_an_unknown_run_is_an_error_page(tmp_path):
    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as browser:
        answer = await browser.get("/console/runs/run_none")
        assert answer.status_code == 404
        assert "There is no run" in answer.text


def test_only_steps_that_changed_are_rendered_again():
    built = EventsView()
    built.add({"type": "run_started", "at": 1.0, "ids": {"run_id": "run_1"}})
    for index in range(4):
        calls = [{"id": f"c{index}", "name": "read", "arguments": {}}]
        built.add({"type": "step_started", "at": 1.0, "index": index})
        built.add({"type": "model_replied", "at": 1.0, "tool_calls": calls})
    run = RunRecord("run_1", "a", "o", "s", "s", "t", "c", "api", "task", status="running")
    sections = RunSections("", Caller("o"), None, dict)
    before = sections.render(run, built.view, set(built.changed))
    built.changed.clear()
    settled = {"type": "tool_settled", "at": 1.0, "call_id": "c1", "tool": "read", "text": "late", "outcome": "error"}
    built.add(settled)
    after = sections.render(run, built.view, set(built.changed))
    assert "late" in after["run-step-2"]  # the first row is the start
    assert after["run-step-0"] is before["run-step-0"]
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"run-head", "run-strip", "run-cols", "run-step-2"}  # one more call


def test_all_links_of_a_mounted_console_stay_in_it(tmp_path):
    ann = Caller("ann", scopes={"read", "run", "admin"})
    paths = {name: str(tmp_path / f"{name}.db") for name in ("runs", "sessions", "approval_file")}
    agents = asgi(Work().agent, authenticate=lambda request: ann, settings=Settings(**paths), home=tmp_path)
    host = Starlette(routes=[Mount("/agents", agents)], lifespan=agents.lifespan)
    with TestClient(host, base_url="http://127.0.0.1") as client:
        run = client.post("/agents/runs", json={"task": "Do it", "session": "s", "wait": 60}).json()
        page = client.get(f"/agents/console/runs/{run['id']}").text
    links = re.findall(r'(?:href|src|action|data-live)="([^"#?][^"]*)"', page)
    assert len(links) > 5
    assert [link for link in links if not link.startswith("/agents/")] == []


async def test_a_long_text_is_shown_in_part_and_a_file_has_all_of_it(tmp_path):
    long = {"path": "a" * 20_000, "note": "b"}
    result = "\u202e".join(["x" * 100_000, "y" * 100_000])

    @tool
    def read(path: str, note: str) -> str:
        """Read a file."""
        return result

    turns = [reply("r" * 20_000, tool_calls=(call("read", **long),)), call("read", path="p", note="n"), reply("Done")]
    agent = Agent(
        "reader", llm=ScriptedModel(turns), tools=[read], hooks=[RecordHook(tmp_path / "records", max_text=1_000_000)]
    )
    async with console(tmp_path, agent) as made, made.logged_in("read", "run", "admin") as browser:
        run = await start(browser)
        await finished(browser, run)
        for query in ("", "&from=record"):
            shown = html.unescape(await call_of(browser, run, "1.1", query))
            assert len(shown) < 60_000
            assert "The model reads 200,001 characters" in text_of(shown)
            links = re.findall(r'<a href="(/console/runs/[^"]*)" download>', shown)
            files = [await browser.get(each) for each in links]
            assert [each.text for each in files] == [f"path:\n{long['path']}\n\nnote:\nb", result]
            assert {each.headers["content-type"] for each in files} == {"text/plain; charset=utf-8"}
            assert all(each.headers["content-disposition"].startswith("attachment") for each in files)
            (link,) = re.findall(r'href="([^"]*)" download', html.unescape(await call_of(browser, run, "1", query)))
            assert (await browser.get(link)).text == "r" * 20_000
            assert "download" in await call_of(browser, run, "2.1", query)
            assert "part=arguments" not in await call_of(browser, run, "2.1", query)
        for query in ("call=1.1&part=other", "call=1.1&part=reply", "call=9.9&part=result", ""):
            assert (await browser.get(f"/console/runs/{run}/text?{query}")).status_code == 404, query
        async with made.logged_in("read", "run") as other:
            assert (await other.get(links[1])).status_code in (403, 404)


async def test_a_long_task_is_readable_in_full(tmp_path):
    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as browser:
        run = await start(browser, "Read " + "every file, " * 800 + "and stop.")
        await finished(browser, run)
        head = (await page_of(browser, run)).partition("<h1")[2].partition("</h1>")[0]
        assert head.endswith("and stop.")
        assert 'tabindex="0"' in head  # it scrolls
