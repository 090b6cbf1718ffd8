"""The lists of runs and of what was refused."""

import json
import re
import time
from collections import Counter
from functools import partial

import msgspec
import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.stores.runs import RunRecord

from .asking import cleaner, waiting_call
from .rig import console

HOSTILE = '<img src=x onerror=alert(1)> & "quotes"'


@tool
def delete(name: str) -> str:
    """Delete a file."""
    raise AssertionError("the guard blocks it")


@guard(BEFORE_TOOL, tools="delete")
def no_deleting(ctx, payload):
    return HookResult.block("Nothing is deleted.", reason=f"rule 3 {HOSTILE}")


def turn(request):
    text = str(request.messages[-1].content)
    if text.startswith("delete") and request.messages[-1].role == "user":
        return call("delete", name=text)
    return reply("done")


def agent():
    return Agent("clerk", llm=ScriptedModel([turn], loop=True), tools=[delete], hooks=[no_deleting])


async def done(browser, task, **fields):
    answer = await browser.post("/runs", json={"task": task, "wait": 30, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


def listed(page):
    """The runs that a page lists, in order."""
    assert page.status_code == 200, page.text
    return re.findall(r'id="row-(run_\w+)"', page.text)


async def test_runs_are_listed_with_their_status_and_verdicts_and_the_newest_is_the_first(tmp_path):
    async with console(tmp_path, agent()) as made, made.browser() as browser:
        first, second = await done(browser, "say hello"), await done(browser, "delete it")
        page = await browser.get("/console/runs")
        assert listed(page) == [second["id"], first["id"]]
        rows = page.text.partition('<tbody id="runs-rows"')[2].split("<tr ")
        assert 'aria-label="blocked"' in rows[1]
        assert '<g class="g blocked"' in rows[1]
        assert "blocked" not in rows[2]
        assert 'class="status completed"' in rows[2]
        assert f'href="/console/runs/{first["id"]}"' in rows[2]


async def test_a_run_that_waits_says_for_what_and_its_line_has_the_question_once(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.browser() as browser:
        _, denied = await waiting_call(made, browser, "a.txt")
        await browser.post(f"/approvals/{denied.id}", json={"decision": "deny", "digest": denied.digest})
        await browser.get(f"/runs/{denied.root_id}?wait=60")
        await waiting_call(made, browser, "b.txt")
        page = (await browser.get("/console/runs")).text
        waiting, ended = page.partition('<tbody id="runs-rows"')[2].split("<tr ")[1:]
        assert "careful asks: May this file go?" in waiting
        assert re.findall(r'<g class="g (\w+)"', waiting) == ["waits"]
        assert "careful asks" not in ended
        assert re.findall(r'<g class="g (\w+)"', ended) == ["denied"]


FOUND = {
    "": "hd",
    "status=completed": "hd",
    "status=failed&status=cancelled": "",
    "status=failed&status=completed": "hd",
    "tool=delete": "d",
    "hook=no_deleting&verb=block": "d",
    "verb=denied": "",
    "text=HELLO": "h",
    "agent=clerk&correlation_id=c-7": "d",
    "range=hour": "hd",
    "since=2001-01-01T00:00": "hd",
    "until=2001-01-01": "",
    "until=2001-01-01T00:00%2B02:00": "",
    "agent=&tool=&range=&since=&text=": "hd",
}


async def test_the_address_has_the_filters_of_the_page_and_of_its_stream(tmp_path):
    async with console(tmp_path, agent()) as made, made.browser() as browser:
        runs = {"d": await done(browser, "delete it", correlation_id="c-7"), "h": await done(browser, "say hello")}
        for query, found in FOUND.items():
            wanted = [runs[each]["id"] for each in found]
            page = await browser.get(f"/console/runs?{query}")
            assert listed(page) == wanted, query
            stream = re.search(r'data-live="([^"]*)"', page.text)[1].replace("&amp;", "&")
            assert stream.startswith("/console/live/runs")
            async with browser.stream("GET", stream) as answer:
                assert await shown(answer.aiter_lines()) == wanted, query


async def shown(lines):
    """The runs in the next sections of a stream."""
    async for line in lines:
        if line.startswith("data: ") and "runs-rows" in (sections := json.loads(line[6:])):
            return re.findall(r'id="row-(run_\w+)"', sections["runs-rows"])


async def test_the_filters_suggest_the_tools_and_hooks_of_the_agents(tmp_path):
    async with console(tmp_path, agent()) as made, made.browser() as browser:
        for path in ("/console/runs", "/console/blocked"):
            page = (await browser.get(path)).text
            for name, known in {"tool": "delete", "hook": "no_deleting"}.items():
                suggested = page.partition(f'<datalist id="known-{name}">')[2].partition("</datalist>")[0]
                assert f'<option value="{known}">' in suggested


async def test_a_wrong_filter_is_an_error_page(tmp_path):
    async with console(tmp_path) as made, made.browser() as browser:
        for path in ("/console/runs", "/console/blocked"):
            for query in ("status=done", "since=yesterday", "nothing=1", "range=year", "until=9999999-01-01"):
                page = await browser.get(f"{path}?{query}")
                assert page.status_code == 422, query
                assert page.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(("path", "first"), [("runs", "tool=delete"), ("blocked", "tool=delete&by=events")])
async def test_a_long_list_has_pages_and_the_filter_stays(tmp_path, monkeypatch, path, first):
    monkeypatch.setattr("hookline.server.console.runs.ROWS", 2)
    async with console(tmp_path, agent()) as made, made.browser() as browser:
        runs = [(await done(browser, "delete it"))["id"] for _ in range(5)]
        seen, address = [], f"/console/{path}?{first}"
        while address:
            page = await browser.get(address)
            seen.append(re.findall(r'id="row-(run_[0-9a-f]+)', page.text))
            following = re.search(r'href="([^"]*)" rel="next"', page.text)
            address = following[1].replace("&amp;", "&") if following else ""
            assert not address or "tool=delete" in address
        assert seen == [runs[:2:-1], runs[2:0:-1], runs[:1]]
        assert f'<a href="/console/{path}?{first.replace("&", "&amp;")}">Newest</a>' in page.text


async def test_a_long_search_stops_and_offers_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.stores.runs._MATCHES", 2)
    async with console(tmp_path, agent()) as made, made.browser() as browser:
        made.server.service.store.search = partial(made.server.service.store.search, seconds=0)
        first = await done(browser, "delete it, the first")
        for _ in range(4):
            await done(browser, "another, the next")
        monkeypatch.setattr("hookline.stores.runs._FEW", 0)
        page, address = await browser.get("/console/runs?text=the&tool=delete"), []
        while following := re.search(r'href="([^"]*)" rel="next">Search further</a>', page.text):
            assert listed(page) == []
            assert "No run matches so far." in page.text
            assert "2 runs searched, back to <time" in page.text
            address.append(following[1].replace("&amp;", "&"))
            page = await browser.get(address[-1])
        assert listed(page) == [first["id"]]
        assert len(address) == 2


async def test_a_page_after_a_run_that_is_gone_is_empty(tmp_path):
    async with console(tmp_path) as made, made.browser() as browser:
        await done(browser, "x")
        for path in ("runs?before=run_1", "blocked?before=run_1:2", "blocked?before=x"):
            assert listed(await browser.get(f"/console/{path}")) == []


async def test_a_caller_sees_its_own_runs_and_refusals_and_an_admin_all_with_their_callers(tmp_path):
    async with console(tmp_path, agent()) as made, made.logged_in("read", "run") as ann:
        mine = (await done(ann, "delete it"))["id"]
        async with made.logged_in("read", "run") as bob, made.logged_in("read", "admin") as admin:
            theirs = (await done(bob, "delete that"))["id"]
            for path in ("runs", "blocked"):
                ids = {}
                for name, browser in {"ann": ann, "bob": bob, "admin": admin}.items():
                    page = await browser.get(f"/console/{path}")
                    ids[name] = re.findall(r'id="row-(run_[0-9a-f]+)', page.text)
                assert ids == {"ann": [mine], "bob": [theirs], "admin": [theirs, mine]}
                assert "key 0" in page.text  # the name of ann's key
                owner = made.keys.keys()[0].id
                filtered = await admin.get(f"/console/{path}?caller={owner}")
                assert re.findall(r'id="row-(run_[0-9a-f]+)', filtered.text) == [mine]
                peek = await bob.get(f"/console/{path}?caller={owner}")
                assert mine not in peek.text


async def test_texts_of_runs_are_escaped(tmp_path):
    async with console(tmp_path, agent()) as made, made.browser() as browser:
        await done(browser, f"delete {HOSTILE}")
        given = {"tool": "<img>", "hook": "<img>", "agent": HOSTILE, "verb": "<img>"}
        for path, query in {"runs": {"text": HOSTILE, **given}, "runs?": {}, "blocked": given, "blocked?": {}}.items():
            page = await browser.get(f"/console/{path}", params=query)
            assert page.status_code == 200
            assert "<img src=x" not in page.text
            assert "<img>" not in page.text
        assert "&lt;img src=x" in (await browser.get("/console/blocked")).text


async def test_a_refusal_is_shown_with_its_reason_hook_tool_and_arguments(tmp_path):
    async with console(tmp_path, agent()) as made, made.browser() as browser:
        run = await done(browser, "delete it" + "!" * 1000)
        page = (await browser.get("/console/blocked")).text
        assert "rule 3 &lt;img" in page
        assert "<b>no_deleting</b>" in page
        assert "<code>delete</code>" in page
        assert f'href="/console/runs/{run["id"]}"' in page
        assert 'aria-label="blocked by no_deleting"' in page  # the hook line
        arguments = re.search(r'<code class="arguments">(.*?)</code>', page, re.DOTALL)[1]
        assert arguments.startswith("{&#34;name&#34;:&#34;delete it!!!")
        assert arguments.endswith(" …")
        assert len(arguments) < 400


async def test_refusals_are_counted_by_rule_and_reason_and_lead_to_their_events(tmp_path):
    async with console(tmp_path, agent()) as made, made.browser() as browser:
        runs = [(await done(browser, "delete it"))["id"] for _ in range(7)]
        page = (await browser.get("/console/blocked")).text
        assert page.count('class="grp"') == 1
        assert re.search(r'<i class="chev"></i>7</span>', page)
        assert re.findall(r'id="row-(run_[0-9a-f]+)', page) == runs[:1:-1]  # the newest five
        assert "2 more" in page
        events = re.search(r'href="([^"]*by=events[^"]*)"[^>]*>2 more', page)[1].replace("&amp;", "&")
        assert re.findall(r'id="row-(run_[0-9a-f]+)', (await browser.get(events)).text) == runs[::-1]
        assert "Nothing matches." in (await browser.get("/console/blocked?hook=other")).text


async def test_open_lists_learn_of_new_runs_and_refusals(tmp_path):
    async with (
        console(tmp_path, agent()) as made,
        made.browser() as browser,
        browser.stream("GET", "/console/live/runs") as runs,
        browser.stream("GET", "/console/live/blocked") as blocked,
    ):
        lines = runs.aiter_lines()
        assert await shown(lines) == []
        run = await done(browser, "delete it")
        assert await shown(lines) == [run["id"]]
        async for line in blocked.aiter_lines():
            if run["id"] in line:
                break


async def test_each_state_has_the_number_of_its_runs_as_the_list_shows_them(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in("read", "run", "admin") as browser:
        await waiting_call(made, browser, "waits.txt")
        await done(browser, "/no")
        now, store = time.time(), made.server.service.store
        ended = {"created": now - 5, "started": now - 5, "ended": now, "elapsed": 5.0, "origin": "library"}
        runs = [
            RunRecord(f"run_{state}_{n}", "clerk", task="Look.", status=state, **ended)
            for state, count in {"failed": 3, "stopped": 2, "interrupted": 1, "cancelled": 1}.items()
            for n in range(count)
        ]
        inner = msgspec.structs.replace(runs[0], id="run_inner", parent_run_id="run_failed_0")
        dead = msgspec.structs.replace(
            runs[0], id="run_dead", status="running", ended=None, host="elsewhere", pid=1, born=1.0
        )
        store.write([*runs, inner, dead], [])
        for query in ("", "?agent=clerk", "?range=day", "?agent=nobody"):
            page = (await browser.get(f"/console/runs{query}")).text
            shown = {state: int(n) for state, n in re.findall(r'<b id="runs-count-(\w+)">(\d+)</b>', page)}
            listed = Counter(re.findall(r'<td class="r-st"><span class="status (\w+)">', page))
            assert shown == listed, query
        assert shown == {}
        page = (await browser.get("/console/runs?tool=delete")).text
        assert re.findall(r'id="runs-count-\w+">', page) == []


async def test_a_filter_keeps_its_invisible_characters_when_it_is_sent_again(tmp_path):
    async with console(tmp_path) as made, made.browser() as browser:
        for path in ("/console/runs", "/console/blocked", "/console/find"):
            name = "tool" if "blocked" in path else "text"
            page = await browser.get(path, params={name: "\u202egnp"})
            assert 'value="\u202egnp"' in page.text, path
