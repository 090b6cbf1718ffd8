"""The inbox of the console."""

import json
import re

import pytest

from hookline.stores.approvals import exact_pattern, matches

from .asking import cleaner, deleted, field, finished, waiting_call
from .rig import console

PATH = "/console/approvals"
RIGHTS = ("read", "run", "approve")
JSON = {"accept": "application/json"}


@pytest.fixture(autouse=True)
def nothing_is_deleted_yet():
    deleted.clear()


async def decide(browser, row, decision, **fields):
    data = {"decision": decision, "digest": row.digest, **fields}
    return await browser.post(f"{PATH}/{row.id}", data=data, headers=JSON)


async def test_the_inbox_shows_the_exact_arguments_who_asks_and_why(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        await waiting_call(made, browser, "<b>a\u202e.txt")
        page = (await browser.get(PATH)).text
        assert "{&#34;path&#34;: &#34;&lt;b&gt;a\\u202e.txt&#34;}" in page
        assert "<b>careful</b> asks: May this file go?" in page
        assert "(files matter)" in page
        assert "<b>cleaner</b> wants to call" in page
        assert "for you" in page


async def test_the_form_of_the_page_approves_the_call_without_scripts(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        run, row = await waiting_call(made, browser)
        page = (await browser.get(PATH)).text
        data = {name: field(page, name) for name in ("decision", "digest", "next")}
        assert data["decision"] == "approve"
        answer = await browser.post(f"{PATH}/{row.id}", data=data)
        assert (answer.status_code, answer.headers["location"]) == (303, PATH)
        assert (await finished(browser, run))["reply"] == "a.txt is gone"
        page = (await browser.get(PATH)).text
        assert f'id="approval-{row.id}"' not in page
        assert ">approved</span>" in page
        assert "by key key 0" in page


async def test_a_script_gets_the_sections_that_changed(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        _, row = await waiting_call(made, browser)
        _, other = await waiting_call(made, browser, "b.txt")
        sections = (await decide(browser, row, "approve")).json()
        assert sections[f"approval-{row.id}"] == ""
        assert "b.txt" in sections[f"approval-{other.id}"]
        assert ">approved</span>" in sections["approvals-decided"]


async def test_a_denial_gives_its_message_to_the_model(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        run, row = await waiting_call(made, browser)
        answer = await decide(browser, row, "deny", message="we need it")
        assert "we need it" in answer.json()["approvals-decided"]
        assert "we need it" in (await finished(browser, run))["reply"]
        assert deleted == []


@pytest.mark.parametrize(("path", "outcome"), [("b.txt", "b.txt is gone"), ("/etc/passwd", "outside")])
async def test_edited_arguments_are_judged_again(tmp_path, path, outcome):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        run, row = await waiting_call(made, browser)
        await decide(browser, row, "edit", arguments=json.dumps({"path": path}))
        assert outcome in (await finished(browser, run))["reply"]
        assert deleted == (["b.txt"] if path == "b.txt" else [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"path":\n "b.txt"', "not JSON: Expecting ',' delimiter in line 2, column 9"),
        ('["b.txt"]', "must be a JSON object"),
        ('{"path": NaN}', "NaN is not JSON"),
        ("", "not JSON"),
    ],
)
async def test_a_mistake_in_edited_arguments_is_named_and_decides_nothing(tmp_path, text, problem):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        _, row = await waiting_call(made, browser)
        answer = await decide(browser, row, "edit", arguments=text)
        assert answer.status_code == 422
        assert problem in answer.json()["error"]["message"]
        assert made.server.service.approvals.find(row.id).status == "pending"


async def test_a_call_other_than_the_one_shown_is_refused(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        _, row = await waiting_call(made, browser)
        _, other = await waiting_call(made, browser, "b.txt")
        data = {"decision": "approve", "digest": other.digest}
        answer = await browser.post(f"{PATH}/{row.id}", data=data, headers=JSON)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "other_digest")
        page = await browser.post(f"{PATH}/{row.id}", data=data)
        assert (page.status_code, page.headers["content-type"]) == (409, "text/html; charset=utf-8")
        assert made.server.service.approvals.find(row.id).status == "pending"


async def test_the_second_of_two_deciders_learns_who_was_first(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        _, row = await waiting_call(made, browser)
        await decide(browser, row, "deny")
        answer = await decide(browser, row, "approve")
        assert answer.status_code == 409
        assert "it was denied by key key 0" in answer.json()["error"]["message"]


async def test_always_for_a_pattern_lets_later_calls_run_until_it_is_revoked(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        _, row = await waiting_call(made, browser, "notes/a.txt")
        answer = await decide(browser, row, "approve", remember="always", **{"pattern.path": "notes/*"})
        assert "{&#34;path&#34;: &#34;notes/*&#34;}" in answer.json()["approvals-grants"]
        run = (await browser.post("/runs", json={"task": "notes/b.txt"})).json()["id"]
        assert (await finished(browser, run))["reply"] == "notes/b.txt is gone"
        (grant,) = made.server.service.approvals.grants()
        answer = await browser.post(f"{PATH}/grants/{grant.id}/revoke", headers=JSON)
        assert "notes/*" not in answer.json()["approvals-grants"]
        await waiting_call(made, browser, "notes/c.txt")


async def test_a_session_is_remembered_for_exactly_these_arguments_unless_the_pattern_is_changed(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        _, row = await waiting_call(made, browser, "a*.txt", session="s")
        page = (await browser.get(PATH)).text
        assert field(page, "pattern.path") == "a[*].txt"
        await decide(browser, row, "approve", remember="session", **{"pattern.path": "a[*].txt"})
        (grant,) = made.server.service.approvals.grants()
        assert (grant.scope, grant.pattern, grant.arguments) == ("session", {}, {"path": "a*.txt"})


async def test_a_pattern_that_does_not_cover_the_call_decides_nothing(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        _, row = await waiting_call(made, browser)
        answer = await decide(browser, row, "approve", remember="always", **{"pattern.path": "b*"})
        assert answer.status_code == 422
        assert "does not cover this call" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "arguments", [{"path": "a [x]*?.txt", "n": 5, "deep": {"a": [1]}}, {"path": ""}, {"path": "a" * 900}]
)
def test_the_pattern_to_start_from_covers_these_arguments_only(arguments):
    pattern = exact_pattern(arguments)
    assert matches(pattern, arguments)
    assert not matches(pattern, {**arguments, "path": f"{arguments['path']}x"})


@pytest.mark.parametrize("arguments", [{}, {"path": "a\nb"}, {"path": "a" * 1001}, {"path": "\u202e"}, {"*": "a"}])
def test_there_is_no_pattern_that_a_line_of_text_cannot_show(arguments):
    assert exact_pattern(arguments) is None


async def test_callers_see_and_decide_calls_of_their_own_runs_only(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as ann, made.logged_in(*RIGHTS) as bob:
        _, row = await waiting_call(made, ann)
        assert row.id not in (await bob.get(PATH)).text
        assert (await decide(bob, row, "approve")).status_code == 404
        async with made.logged_in("admin", "read", "approve") as admin:
            page = (await admin.get(PATH)).text
            assert row.id in page
            assert "for key 0" in page
        async with made.logged_in("read") as reader:
            assert (await decide(reader, row, "approve")).status_code == 403


async def test_without_the_right_to_approve_there_are_no_buttons(tmp_path):
    async with console(tmp_path, cleaner()) as made:
        async with made.logged_in(*RIGHTS) as browser:
            _, row = await waiting_call(made, browser)
        async with made.logged_in("admin", "read") as reader:
            page = (await reader.get(PATH)).text
            assert row.id in page
            assert "<form" not in page.partition("<main")[2]  # above it is the one to log out


def sections_of(stream):
    return (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: "))


async def test_a_new_call_and_a_decision_arrive_on_an_open_page(tmp_path):
    async with (
        console(tmp_path, cleaner()) as made,
        made.logged_in(*RIGHTS) as browser,
        browser.stream("GET", f"{PATH}/live") as stream,
    ):
        sections = sections_of(stream)
        assert "Nothing waits" in (await anext(sections))["approvals-count"]
        _, row = await waiting_call(made, browser)
        changed = await anext(sections)
        assert 'data-into="approvals-waiting"' in changed[f"approval-{row.id}"]
        await decide(browser, row, "deny")
        changed = await anext(sections)
        assert changed[f"approval-{row.id}"] == ""
        assert ">denied</span>" in changed["approvals-decided"]


async def test_a_revoked_permission_disappears_from_an_open_page(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        _, row = await waiting_call(made, browser)
        await decide(browser, row, "approve", remember="always")
        async with browser.stream("GET", f"{PATH}/live") as stream:
            sections = sections_of(stream)
            assert "may call" in (await anext(sections))["approvals-grants"]
            store = made.server.service.approvals
            store.revoke(store.grants()[0].id)
            found = {}
            while "approvals-grants" not in found:
                found = await anext(sections)
            assert "may call" not in found["approvals-grants"]


async def test_a_waiting_call_names_the_run_that_it_belongs_to(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        run, _ = await waiting_call(made, browser, "a\u202e.txt")
        for path in ("/", "/console/approvals"):
            page = (await browser.get(path)).text
            assert f'<a href="/console/runs/{run}">the run “a\\u202e.txt”</a>' in page


@pytest.mark.sqlite  # on PostgreSQL a process has a lease
async def test_a_call_whose_process_was_killed_is_listed_at_the_time_when_it_was_asked(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        await waiting_call(made, browser)
        no_process = 2**22 + 1  # above the largest id that Linux gives
        made.server.service.approvals.db.execute(
            "UPDATE approvals SET pid = ?, asked = 1000", (no_process,), write=True
        )
        decided = (await browser.get("/console/approvals")).text.partition('id="approvals-decided"')[2]
        assert "cancelled" in decided
        assert "1970-01-01T00:16:40Z" in decided


@pytest.mark.parametrize("durable", [False, True])
async def test_a_denied_call_is_on_the_first_page_and_in_the_list_with_its_tool_and_the_person(tmp_path, durable):
    async with console(tmp_path, cleaner(), durable=durable) as made, made.logged_in(*RIGHTS) as browser:
        run, row = await waiting_call(made, browser, "a.txt")
        await decide(browser, row, "deny", message="we need it")
        await finished(browser, run)
        group = (await browser.get("/console/blocked")).text.partition('<summary class="grp"')[2]
        assert "we need it" in group.partition("</summary>")[0]
        for path, section in (("/", "now-blocked"), ("/console/blocked", "blocked-rows")):
            answer = await browser.get(path)
            assert answer.status_code == 200, path
            shown = answer.text.partition(f'id="{section}"')[2]
            assert 'aria-label="denied"' in shown
            assert "<code>delete</code>" in shown
            assert re.search(r"<(b|a [^>]*)>[^<]*key 0[^<]*</", shown)
            assert "we need it" in shown
        async with browser.stream("GET", "/console/now") as stream:
            sections = await anext(line async for line in stream.aiter_lines() if line.startswith("data: "))
        assert "we need it" in json.loads(sections[6:])["now-blocked"]
