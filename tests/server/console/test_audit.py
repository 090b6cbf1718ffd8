"""The pages of the audit log, and its HTTP API."""

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest

from hookline.server import audit
from hookline.stores import AuditIndex, AuditLog

from .rig import console

PATH = "/console/audit"
RECORDS = "/audit/records"
VERIFICATIONS = "/audit/verifications"


def write(path, count=5, **options):
    with closing(AuditLog(path, fsync="never", **options)) as log:
        for number in range(count):
            log.record(
                "deploy", run_id=f"run_{number:04}", hook="rule", verb="block", note=f"<b>{number}</b>", by="ada"
            )
    return path


def forge(path, old, new):
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


@asynccontextmanager
async def audited(folder, *scopes, **options):
    """A browser at the console of a server with an audit log."""
    async with (
        console(folder, audit=folder / "audit.jsonl", **options) as made,
        made.logged_in(*(scopes or ("read", "admin"))) as browser,
    ):
        yield made, browser


async def verified(browser):
    """Verify the log over HTTP, and return the result."""
    answer = await browser.post(VERIFICATIONS)
    assert answer.status_code == 202, answer.text
    return await ended(browser, f"{VERIFICATIONS}/{answer.json()['id']}")


async def ended(browser, path):
    while True:
        found = (await browser.get(path)).json()
        if found["status"] not in ("queued", "running"):
            return found
        await asyncio.sleep(0.1)


async def sections_of(browser, path, until):
    """Return the sections that a stream has sent when ``until`` is true of them."""
    found = {}
    async with browser.stream("GET", path) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                found |= json.loads(line.removeprefix("data: "))
            if found and until(found):
                return found
    raise AssertionError("the stream has ended")


# The page.


async def test_the_page_lists_records_newest_first_and_leads_to_the_older_ones(tmp_path):
    write(tmp_path / "audit.jsonl", 120)
    async with audited(tmp_path) as (_, browser):
        page = (await browser.get(f"{PATH}?type=deploy")).text
        assert page.index("note=&lt;b&gt;119&lt;/b&gt;") < page.index("note=&lt;b&gt;70&lt;/b&gt;")
        assert "&lt;b&gt;69&lt;" not in page
        older = re.search(r'href="([^"]*before=[^"]*)" rel="next"', page)[1].replace("&amp;", "&")
        page = (await browser.get(older)).text
        assert "&lt;b&gt;69&lt;" in page
        assert "&lt;b&gt;70&lt;" not in page


FILTERS = {
    "run=run_0002": ["2"],
    "text=%3CB%3E3": ["3"],
    "text=nothing": [],
    "caller=ada&run=0001": ["1"],
    "caller=bob&type=deploy": [],
    "hook=rule&verb=block&run=0004": ["4"],
    "verb=ask": [],
    "since=2999-01-01T00:00&type=deploy": [],
    "range=hour&run=0000": ["0"],
}


@pytest.mark.parametrize("index", ["", "index.db"])
async def test_the_filters_of_the_address_choose_records(tmp_path, index):
    options = {"audit_index": tmp_path / index} if index else {}
    write(tmp_path / "audit.jsonl", **({"index": tmp_path / index} if index else {}))
    async with audited(tmp_path, **options) as (_, browser):
        for query, found in FILTERS.items():
            page = (await browser.get(f"{PATH}?{query}")).text
            assert re.findall(r"note=&lt;b&gt;(\d)", page) == found, query
            assert found or "No record matches." in page, query


@pytest.mark.parametrize("index", ["", "index.db"])
async def test_a_record_has_a_page_with_all_of_its_fields_and_a_link_to_its_run(tmp_path, index):
    options = {"audit_index": tmp_path / index} if index else {}
    write(tmp_path / "audit.jsonl", **({"index": tmp_path / index} if index else {}))
    async with audited(tmp_path, **options) as (_, browser):
        (target,) = re.findall(r'href="(/console/audit/records/[^"]+)"', (await browser.get(f"{PATH}?run=0003")).text)
        page = (await browser.get(target)).text
        assert "<dd>&lt;b&gt;3&lt;/b&gt;</dd>" in page
        assert 'href="/console/runs/run_0003"' in page
        assert ("is the one that the index has" if index else "contains the hash of this one") in page


async def test_a_record_that_does_not_exist_is_an_error_page(tmp_path):
    async with audited(tmp_path) as (_, browser):
        for id in ("1-7", "9-0", "nothing", "1-", "../now", "7", "٣-٣"):
            assert (await browser.get(f"{PATH}/records/{id}")).status_code == 404, id


async def test_new_records_come_to_an_open_page(tmp_path):
    path = write(tmp_path / "audit.jsonl")
    async with audited(tmp_path) as (_, browser):
        query = "/console/live/audit"

        def is_there(sections):
            if "&lt;b&gt;4&lt;" in sections["audit-rows"] and not is_there.done:
                is_there.done = True
                with closing(AuditLog(path, fsync="never")) as log:
                    log.record("deploy", note="later")
            return "note=later" in sections["audit-rows"]

        is_there.done = False
        await sections_of(browser, query, is_there)


async def test_without_an_audit_log_the_page_says_how_to_keep_one(tmp_path):
    async with console(tmp_path, audit="") as made, made.logged_in("read", "admin") as browser:
        answer = await browser.get(PATH)
        assert answer.status_code == 200
        assert "There is no audit log" in answer.text
        assert (await browser.get(RECORDS)).status_code == 404
        assert (await browser.post(VERIFICATIONS)).status_code == 404


async def test_callers_without_the_right_admin_see_neither_the_pages_nor_a_link(tmp_path):
    write(tmp_path / "audit.jsonl")
    async with audited(tmp_path, "read", "run", "approve") as (_, browser):
        for path in (PATH, "/console/live/audit", f"{PATH}/records/1-0", RECORDS, f"{RECORDS}/1-0"):
            assert (await browser.get(path)).status_code == 403, path
        assert (await browser.post(f"{PATH}/verify")).status_code == 403
        assert (await browser.post(VERIFICATIONS)).status_code == 403
        assert PATH not in (await browser.get("/console/runs")).text
    async with audited(tmp_path) as (_, browser):
        assert f'href="{PATH}"' in (await browser.get("/console/runs")).text


@pytest.mark.parametrize("index", ["", "index.db"])
async def test_views_of_the_console_are_listed_only_if_somebody_asks_for_them(tmp_path, index):
    options = {"audit_index": tmp_path / index} if index else {}
    async with audited(tmp_path, **options) as (_, browser):

        async def listed(query=""):
            page = await browser.get(f"{PATH}?{query}")
            return [f"{route} " in page.text for route in ("GET /console/runs", "POST /console/halt", f"GET {RECORDS}")]

        async def recorded(views):
            page = await browser.get(f"{RECORDS}?limit=200&views={views}")
            return {(each["record"] or {}).get("route") for each in page.json()["records"]}

        await browser.get("/console/runs")
        await browser.post("/console/halt", data={"reason": "a drill"})
        await browser.get(RECORDS)
        while not {"/console/halt", RECORDS} <= await recorded("true"):  # the index is written a moment later
            await asyncio.sleep(0.02)
        assert await listed() == [False, True, True]
        assert await listed("views=shown") == [True, True, True]
        assert await listed("type=auth") == [True, True, True]
        assert "/console/runs" in await recorded("true")
        assert "/console/runs" not in await recorded("false")
        assert "/console/halt" in await recorded("false")


@pytest.mark.sqlite  # it changes the file
def test_an_index_of_an_earlier_version_is_used(tmp_path):
    log = write(tmp_path / "audit.jsonl", index=tmp_path / "index.db")
    with closing(sqlite3.connect(tmp_path / "index.db")) as db:
        db.execute("ALTER TABLE records DROP COLUMN is_view")
        db.execute("PRAGMA user_version = 1")
        db.commit()
    index = AuditIndex(tmp_path / "index.db")
    count = len(index.records())
    with closing(AuditLog(log, fsync="never", index=tmp_path / "index.db")) as again:
        again.record("auth", decision="granted", method="GET", route="/console/runs")
    assert len(index.records()) == len(index.records(views=False)) + 1 > count


async def test_verdicts_are_coloured_as_everywhere(tmp_path):
    with closing(AuditLog(tmp_path / "audit.jsonl", fsync="never")) as log:
        for verb in ("block", "replace", "ask", "cont"):
            log.record("verdict", hook="rule", verb=verb, point="before_tool", reason="")
        log.record("approval", decision="denied", by="ada", call_id="c1")
    async with audited(tmp_path) as (_, browser):
        page = (await browser.get(PATH)).text
        found = re.findall(r'<td class="a-v"><span class="rule (\w+)"><svg.*?<g class="g (\w+)".*?</svg>([^<]*)<', page)
        assert found[::-1] == [
            ("red", "blocked", "blocked"),
            ("amber", "changed", "changed"),
            ("violet", "asked", "asked"),
            ("red", "denied", "denied"),
        ]


# Verifying.


async def test_the_button_verifies_the_log_and_the_page_shows_the_result(tmp_path):
    write(tmp_path / "audit.jsonl")
    async with audited(tmp_path) as (_, browser):
        assert (await browser.post(f"{PATH}/verify")).headers["location"] == PATH
        done = await sections_of(browser, "/console/live/audit", lambda found: "pill grey" in found["audit-verify"])
        assert "records in 1 file, unchanged" in done["audit-verify"]
        assert "intact" in (await browser.get(PATH)).text


async def test_a_forged_record_is_found_and_shown_with_its_place(tmp_path):
    path = write(tmp_path / "audit.jsonl")
    forge(path, b"<b>2</b>", b"<b>7</b>")
    async with audited(tmp_path) as (_, browser):
        result = (await verified(browser))["report"]
        assert (result["ok"], result["unchanged"]) == (False, False)
        assert result["findings"][0]["line"] == 5
        page = (await browser.get(PATH)).text
        assert "audit.jsonl:5" in page
        place = f"{PATH}/lines/audit.jsonl/5"
        assert f'href="{place}"' in page
        assert "&lt;b&gt;3&lt;/b&gt;" in (await browser.get((await browser.get(place)).headers["location"])).text
        for wrong in (
            "audit.jsonl/0",
            "audit.jsonl/x",
            "audit.jsonl/" + "9" * 40,
            "audit.jsonl/9999999",
            "keys.db/1",
            "..%2Fkeys.db/1",
        ):
            assert (await browser.get(f"{PATH}/lines/{wrong}")).status_code == 404, wrong
        assert "the hash of the line before does not match: one of the two lines was changed" in page
        (target,) = re.findall(r'href="(/console/audit/records/[^"]+)"', (await browser.get(f"{PATH}?run=0002")).text)
        assert "one of the two was changed" in (await browser.get(target)).text


async def test_a_forged_record_is_marked_in_the_list_if_there_is_an_index(tmp_path):
    path = write(tmp_path / "audit.jsonl", index=tmp_path / "index.db")
    forge(path, b"<b>2</b>", b"<b>7</b>")
    async with audited(tmp_path, audit_index=tmp_path / "index.db") as (_, browser):
        page = (await browser.get(f"{PATH}?type=deploy")).text
        assert page.count("line changed") == 1
        (target,) = re.findall(r'href="(/console/audit/records/[^"]+)"', (await browser.get(f"{PATH}?run=0002")).text)
        assert "it was changed after it was written" in (await browser.get(target)).text


async def test_lines_that_were_cut_off_are_found_with_the_index(tmp_path):
    path = write(tmp_path / "audit.jsonl", index=tmp_path / "index.db")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    path.with_name("audit.jsonl.head").unlink()
    async with audited(tmp_path, audit_index=tmp_path / "index.db") as (_, browser):
        report = (await verified(browser))["report"]
        assert "the index" in json.dumps(report["findings"])


async def test_a_verification_finds_exactly_what_the_command_line_finds(tmp_path):
    path = write(tmp_path / "audit.jsonl")
    forge(path, b"<b>2</b>", b"<b>7</b>")
    async with audited(tmp_path) as (_, browser):
        report = (await verified(browser))["report"]
        command = [sys.executable, "-m", "hookline", "audit", "verify", str(path), "--json"]
        printed = await asyncio.to_thread(subprocess.run, command, capture_output=True, cwd=tmp_path)
        assert printed.returncode == 1
        assert json.loads(printed.stdout)["findings"] == report["findings"]


@pytest.fixture
def endless(monkeypatch):
    """Let verifications never end."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(audit, "PROCESS", "endless_process")


@pytest.mark.usefixtures("endless")
async def test_a_verification_can_be_cancelled_and_leaves_no_process(tmp_path):
    write(tmp_path / "audit.jsonl")
    async with audited(tmp_path) as (_, browser):
        answer = (await browser.post(VERIFICATIONS)).json()
        page = await sections_of(browser, "/console/live/audit", lambda found: "25 %" in found["audit-verify"])
        assert "<progress" in page["audit-verify"]
        pid = int((tmp_path / "audit.jsonl.pid").read_text())
        os.kill(pid, 0)
        target = f"{PATH}/verify/{answer['id']}/cancel"
        assert (await browser.post(target, headers={"accept": "application/json"})).status_code == 200
        result = (await browser.get(f"{VERIFICATIONS}/{answer['id']}")).json()
        assert (result["status"], result["report"]) == ("cancelled", None)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert "was cancelled" in (await browser.get(PATH)).text
        assert (await browser.post(f"{VERIFICATIONS}/{answer['id']}/cancel")).status_code == 409
        assert (await browser.get(f"{VERIFICATIONS}/job_nothing")).status_code == 404


@pytest.mark.usefixtures("endless")
async def test_a_server_that_stops_ends_the_process_of_a_verification(tmp_path):
    write(tmp_path / "audit.jsonl")
    async with audited(tmp_path) as (_, browser):
        await browser.post(VERIFICATIONS)
        await sections_of(browser, "/console/live/audit", lambda found: "25 %" in found["audit-verify"])
        pid = int((tmp_path / "audit.jsonl.pid").read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.usefixtures("endless")
async def test_too_many_verifications_are_refused(tmp_path):
    write(tmp_path / "audit.jsonl")
    async with audited(tmp_path) as (_, browser):
        statuses = [(await browser.post(VERIFICATIONS)).status_code for _ in range(12)]
        assert statuses == [202] * 9 + [429] * 3


# HTTP.


@pytest.mark.parametrize("index", ["", "index.db"])
async def test_records_are_listed_over_http_in_pages(tmp_path, index):
    options = {"audit_index": tmp_path / index} if index else {}
    write(tmp_path / "audit.jsonl", 7, **({"index": tmp_path / index} if index else {}))
    async with audited(tmp_path, **options) as (_, browser):
        notes, before = [], ""
        while True:
            page = (await browser.get(RECORDS, params={"type": "deploy", "limit": 3, "before": before})).json()
            notes += [each["record"]["note"] for each in page["records"]]
            before = page["next"]
            if not before:
                break
        assert notes == [f"<b>{number}</b>" for number in (6, 5, 4, 3, 2, 1, 0)]
        one = page["records"][-1]
        assert (await browser.get(f"{RECORDS}/{one['id']}")).json() == one
        assert one["run_id"] == "run_0000"


async def test_a_wrong_parameter_is_refused(tmp_path):
    write(tmp_path / "audit.jsonl")
    async with audited(tmp_path) as (_, browser):
        for params in ({"before": "x"}, {"limit": 0}, {"nothing": 1}, {"since": "soon"}, {"before": "7"}):
            assert (await browser.get(RECORDS, params=params)).status_code == 422, params


async def test_the_page_of_a_run_links_to_its_audit_records(tmp_path):
    async with audited(tmp_path, "read", "run", "admin") as (_, browser):
        run = (await browser.post("/runs", json={"task": "hello", "wait": 30})).json()
        assert f'href="{PATH}?run={run["id"]}"' in (await browser.get(f"/console/runs/{run['id']}")).text


async def test_a_request_without_a_login_gets_nothing(tmp_path):
    write(tmp_path / "audit.jsonl")
    async with (
        audited(tmp_path) as (made, _),
        httpx.AsyncClient(base_url=made.url, trust_env=False, timeout=60) as stranger,
    ):
        assert (await stranger.get(RECORDS)).status_code == 401
        assert (await stranger.get(PATH)).headers["location"].startswith("/console/login")
