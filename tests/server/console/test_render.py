"""Tests of the parts that all pages of the console share."""

import asyncio
import json
import re
import time
from contextlib import closing
from importlib.resources import files

import pytest
from jinja2 import Template, nodes

from hookline.records import RecordHook
from hookline.server.console.render import SHARED, _environment, fragment, static_file
from hookline.stores import AuditLog
from hookline.stores.facts import Gate, ObservedRun, RunFact
from hookline.stores.runs import RunRecord, StoredEvent
from hookline.stores.tickets import TicketBoard

from .asking import cleaner, waiting_call
from .rig import console

ODD = "quarantined"
"""A verb, status, decision and outcome that no page knows."""
NOT_DRAWN = "This part of the page could not be drawn."


def test_all_scripts_and_styles_together_are_small():
    own = [each.name for each in (files("hookline.server.console") / "static").iterdir()]
    assert sum(len(static_file(name)) for name in (*own, *SHARED)) < 200_000


async def test_a_page_loads_its_files_from_this_server_only_and_browsers_keep_them(tmp_path):
    async with console(tmp_path) as made, made.browser() as browser:
        page = await browser.get("/")
        addresses = re.findall(r'(?:src|href)="([^"#]*)"', page.text)
        assert all(each.startswith("/") for each in addresses)
        static = [each for each in addresses if each.startswith("/console/static/")]
        assert len(static) > 3
        for each in static:
            answer = await browser.get(each)
            assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "require-trusted-types-for 'script'" in page.headers["content-security-policy"]


async def test_only_a_browser_that_is_logged_in_can_log_out(tmp_path):
    async with console(tmp_path) as made, made.browser() as anybody:
        assert "Log out" not in (await anybody.get("/")).text
        async with made.logged_in("read") as browser:
            assert "Log out" in (await browser.get("/")).text


# Pages that stay up.


def test_no_template_looks_a_value_up_that_may_be_missing():
    found = {}
    for name in _environment().list_templates():
        parsed = _environment().parse(_environment().loader.get_source(_environment(), name)[0])
        for each in parsed.find_all(nodes.Getitem):
            if not isinstance(each.arg, nodes.Slice) and not isinstance(getattr(each.arg, "value", None), int):
                found.setdefault(name, []).append(each.lineno)
    assert found == {}


def odd_events(run_id):
    """Events with values that this version does not know."""
    call = {"id": "c1", "name": "delete", "arguments": {"path": "a"}}
    events = (
        ("run_started", {"ids": {"run_id": run_id, "agent": "cleaner"}}),
        ("step_started", {"index": 0}),
        ("model_replied", {"tool_calls": [call], "finish_reason": ODD, "source": ODD, "purpose": ODD}),
        ("hook_executed", {"point": ODD, "hook": "odd", "phase": ODD, "verb": ODD, "call_id": "c1", "reason": "why"}),
        ("approval_asked", {"call_id": "c1", "tool": "delete", "questions": ["May it?"]}),
        ("approval_decided", {"call_id": "c1", "decision": ODD, "by": "ann"}),
        ("tool_ended", {"call_id": "c1", "tool": "delete", "outcome": ODD}),
        (ODD, {"anything": 1}),
        ("step_started", {"index": "not a number"}),
        ("run_closed", {"status": ODD}),
    )
    now = time.time()
    for seq, (type, fields) in enumerate(events, 1):
        data = json.dumps({"type": type, "seq": seq, "at": now, "run_id": run_id, **fields}).encode()
        yield StoredEvent(run_id, seq, type, now, data)


async def test_a_page_shows_values_that_it_does_not_know(tmp_path):
    async with console(tmp_path, cleaner(), audit=tmp_path / "audit.jsonl") as made, made.browser() as browser:
        service, now = made.server.service, time.time()
        run = RunRecord(
            *("run_odd", "cleaner", "local", "talk", "session", "", "", "console", "Odd."),
            **{"status": ODD, "created": now, "started": now, "ended": now, "elapsed": 1.0, "last_seq": 10},
        )
        service.store.write([run], list(odd_events("run_odd")))
        about = ObservedRun("run_odd", "cleaner", asked="cleaner", owner="local")
        odd = {"point": ODD, "tool": "delete", "hook": "odd", "verb": ODD, "refused": True}
        fire = RunFact(about, now, "fire", 1, **odd, gates=(Gate("odd", ODD, ODD, 9, refused=True),))
        service.store.add([], [fire, RunFact(about, now, "model", 2, model=ODD, source="model", cost=0.5)])
        await waiting_call(made, browser)
        with service.approvals.db.transaction(write=True) as db:
            db.execute("UPDATE approvals SET status = ?", (ODD,))
        with closing(AuditLog(tmp_path / "audit.jsonl", fsync="never")) as log:
            log.record(ODD, verb=ODD)
        for path in (
            *("/", "/console/runs", "/console/runs/run_odd", "/console/blocked", "/console/approvals"),
            *("/console/hooks", "/console/cost", "/console/audit", "/console/chat?agent=cleaner&session=talk"),
        ):
            answer = await browser.get(path)
            assert (answer.status_code, ODD in answer.text) == (200, True), path
            assert NOT_DRAWN not in answer.text, path
        assert "Event 9 (step_started) could not be shown." in (await browser.get("/console/runs/run_odd")).text


def test_a_replay_shows_decisions_that_it_does_not_know():
    one = {
        "kind": "blocks",
        "tool": "",
        "point": ODD,
        "certainty": ODD,
        "subject": "",
        "then": "",
        "now": f"{ODD} by x",
    }
    cell = {**dict.fromkeys(("hook", "tool"), ""), "point": ODD, "kind": "blocks", "total": 1}
    view = {"result": {"cells": [{**cell, "exact": 1, "conditional": 0, "guess": 0}]}}
    given = {
        "split": lambda text: text.partition(" ")[::2],
        "examples_of": lambda cell: [{**one, "run_id": "r"}],
        "mark_of": lambda kind: ODD,
        "tone_of": lambda kind: "grey",
    }
    html = fragment("replay_sections.html", "", section="cells", view=view, tasks={}, **given)
    assert f"<b>{ODD}</b>" in html
    assert "<b>passed</b>" in html


SECTIONS = {
    "/": ("now", "counts", "waiting", "stuck", "running", "failed", "blocked"),
    "/console/runs": ("runs", "rows", "pages"),
    "/console/blocked": ("blocked", "rows", "pages"),
    "/console/runs/{run}": ("run", "head", "actions", "strip", "cols", "older", "step-1"),
    "/console/approvals": ("approvals", "count", "decided", "grants"),
    "/console/hooks": ("hooks", "list"),
    "/console/cost": ("cost", "totals", "chart", "tables"),
    "/console/replay": ("replay", "rows", "pages", "tries"),
    "/console/audit": ("audit", "verify", "rows", "pages"),
    "/console/tickets": ("tickets", "todo", "running", "done"),
}


@pytest.fixture
async def pages(tmp_path):
    """A server with every page, whose run waits for a person."""
    board = TicketBoard(tmp_path / "tickets.db")
    board.create("Tidy up", by="ada")
    agent = cleaner(RecordHook(tmp_path / "records"))
    options = {"tickets": tmp_path / "tickets.db", "audit": tmp_path / "audit.jsonl"}
    async with console(tmp_path, agent, **options) as made, made.browser() as browser:
        await waiting_call(made, browser)
        while not (rows := made.server.service.approvals.rows(status="pending")):
            await asyncio.sleep(0.005)
        yield browser, rows[0].root_id


@pytest.mark.parametrize("path", SECTIONS)
async def test_a_section_that_cannot_be_drawn_says_so_and_the_others_are_shown(pages, monkeypatch, caplog, path):
    browser, run = pages
    prefix, *names = SECTIONS[path]
    ids = [f"{prefix}-{name}".format(run=run) for name in names]
    path = path.format(run=run)
    shown = (await browser.get(path)).text
    assert NOT_DRAWN not in shown
    render = Template.render
    for broken in ids:
        opening = re.compile(rf'\s*<[^>]*\bid="{broken}"')

        def failing(self, *args, opening=opening, **values):
            html = render(self, *args, **values)
            if self.name != "broken_section.html" and opening.match(html):
                raise ValueError("a bug")
            return html

        monkeypatch.setattr(Template, "render", failing)
        caplog.clear()
        answer = await browser.get(path)
        assert answer.status_code == 200, broken
        assert answer.text.count(NOT_DRAWN) == 1, broken
        assert [id for id in ids if f'id="{id}"' not in answer.text] == [], broken
        assert f"the section {broken} of a page of the console could not be drawn" in caplog.text
        assert "ValueError: a bug" in caplog.text


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/", "now.refusal_groups"),
        ("/", "now.open_runs"),
        ("/console/runs", "runs.verdict_times"),
        ("/console/blocked", "runs.refusal_groups"),
        ("/console/runs/{run}", "run.Tree"),
        ("/console/runs/{run}?from=record", "run.Tree"),
        ("/console/approvals", "approvals.caller_names"),
        ("/console/hooks", "figures._order"),
        ("/console/cost", "figures.FiguresPages._render_cost"),
        ("/console/replay", "replay.ReplayPages._recorded"),
        ("/console/audit", "audit.AuditPages._verification"),
        ("/console/tickets", "tickets.TicketsPage._column"),
    ],
)
async def test_a_page_whose_data_cannot_be_read_says_so(pages, monkeypatch, caplog, path, place):
    browser, run = pages

    def broken(*args, **options):
        raise ValueError("a bug")

    broken.of = broken
    monkeypatch.setattr(f"hookline.server.console.{place}", broken)
    answer = await browser.get(path.format(run=run))
    assert (answer.status_code, NOT_DRAWN in answer.text) == (200, True)
    assert 'aria-label="Pages"' in answer.text
    assert "ValueError: a bug" in caplog.text


def test_the_files_of_all_pages_together_are_small():
    names = [each.name for each in (files("hookline.server.console") / "static").iterdir()]
    assert sum(len(static_file(name)) for name in (*names, *SHARED)) < 200_000
