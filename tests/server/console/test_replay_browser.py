"""The pages Replay and Audit, in a real browser."""

import re
from contextlib import AsyncExitStack

from hookline.records import RecordHook

from .browser import LOST, PHONE, accessibility_problems, expect, fits, in_browser, opened
from .rig import console
from .test_audit import ended, forge, write
from .test_replay import STRICT, agent

pytestmark = in_browser

ADMIN = ("read", "run", "admin")


async def test_rules_are_tried_on_chosen_runs_and_the_differences_appear(browser, tmp_path):
    (tmp_path / "strict.py").write_text(STRICT)
    hooks = [RecordHook(tmp_path / "records")]
    async with console(tmp_path, agent(tmp_path, *hooks), rules=["strict.py"]) as made:
        async with made.logged_in(*ADMIN) as client:
            for task in ("the roof", "the cellar", "the letter " + "box/" * 60):
                await client.post("/runs", json={"task": task, "wait": 30})
        for options in ({}, {"color_scheme": "dark"}, PHONE):
            async with opened(browser, made, "/console/replay", login=ADMIN, **options) as page:
                await expect(page.locator("#replay-rows .choose")).to_have_count(3)
                assert await fits(page)
                await page.keyboard.press("j")
                await page.keyboard.press("x")
                await expect(page.locator(".choose").first).to_be_checked()
                await page.keyboard.press("j")
                await page.keyboard.press("x")
                await page.click("text=Try on the chosen runs")
                await page.wait_for_url(re.compile("/console/replay/job_"))
                await expect(page.locator("#replay-head")).to_contain_text("2 of 2 runs would differ")
                rows = page.locator("#replay-cells .group")
                await expect(rows).to_have_count(2)
                row = rows.filter(has_text="newly blocked")
                await expect(row.locator(".differs")).to_be_hidden()
                await page.keyboard.press("j")
                await row.locator("summary").press("Enter")
                await expect(row.locator("[data-label=Recorded]")).to_have_text(re.compile(r"^\s*passed\s*$"))
                await expect(row.locator("[data-label=Replayed]")).to_contain_text("blocked by careful")
                assert await fits(page)


async def test_a_try_that_the_server_has_forgotten_stays_as_it_was_and_says_so(browser, tmp_path):
    (tmp_path / "strict.py").write_text(STRICT)
    hooks = [RecordHook(tmp_path / "records")]
    async with AsyncExitStack() as servers:
        server = console(tmp_path, agent(tmp_path, *hooks), rules=["strict.py"])
        made = await servers.enter_async_context(server)
        async with made.browser() as client:
            await client.post("/runs", json={"task": "the roof", "wait": 30})
        async with opened(browser, made, "/console/replay", allowed=(LOST, "404")) as page:
            await page.check(".choose")
            await page.click("text=Try on the chosen runs")
            await expect(page.locator("#replay-head")).to_contain_text("No decision would differ")
            await servers.aclose()
            async with console(tmp_path, agent(tmp_path), port=int(made.url.rpartition(":")[2])):
                gone = "The server no longer has what this page shows."
                await expect(page.locator(".connection")).to_contain_text(gone)
                await expect(page.locator("#replay-head")).to_contain_text("No decision would differ")


async def test_a_new_run_appears_in_the_list_and_what_was_chosen_stays_chosen(browser, tmp_path):
    (tmp_path / "strict.py").write_text(STRICT)
    hooks = [RecordHook(tmp_path / "records")]
    async with (
        console(tmp_path, agent(tmp_path, *hooks), rules=["strict.py"]) as made,
        made.logged_in(*ADMIN) as client,
    ):
        await client.post("/runs", json={"task": "the roof", "wait": 30})
        async with opened(browser, made, "/console/replay", login=ADMIN) as page:
            await page.check(".choose")
            await client.post("/runs", json={"task": "the cellar", "wait": 30})
            await expect(page.locator("#replay-rows .choose")).to_have_count(2)
            await expect(page.locator(".choose").nth(0)).not_to_be_checked()
            await expect(page.locator(".choose").nth(1)).to_be_checked()


async def test_a_forged_record_is_found_with_the_button(browser, tmp_path):
    path = write(tmp_path / "audit.jsonl", 30)
    async with console(tmp_path, audit=path) as made:
        for options, is_forged in (({}, False), (PHONE, True)):
            if is_forged:
                forge(path, b"<b>7</b>", b"<b>8</b>" + b"long/" * 80)
            async with opened(browser, made, "/console/audit", login=ADMIN, **options) as page:
                await page.click("text=Verify the log")
                found = page.locator("#audit-verify .pill").first
                await expect(found).to_have_text("changed" if is_forged else "intact")
                if is_forged:
                    await expect(page.locator("#audit-verify .row").first).to_contain_text("audit.jsonl:10")
                assert await fits(page)
                await page.fill("[data-search]", "<b>7</b>")
                await page.keyboard.press("Enter")
                await page.wait_for_url("**/console/audit?text=*")
                await expect(page.locator("#audit-rows [data-row]")).to_have_count(0 if is_forged else 1)
                if not is_forged:
                    await page.keyboard.press("j")
                    await page.keyboard.press("Enter")
                    await expect(page.locator("main dl")).to_contain_text("<b>7</b>")
                    assert await fits(page)


async def test_both_pages_work_without_scripts(browser, tmp_path):
    (tmp_path / "strict.py").write_text(STRICT)
    hooks = [RecordHook(tmp_path / "records")]
    path = write(tmp_path / "audit.jsonl")
    async with console(tmp_path, agent(tmp_path, *hooks), rules=["strict.py"], audit=path) as made:
        async with made.logged_in(*ADMIN) as client:
            await client.post("/runs", json={"task": "the letter", "wait": 30})
        async with opened(browser, made, "/console/replay", login=ADMIN, java_script_enabled=False) as page:
            await page.click("text=Try on all runs below")
            while not await page.locator("#replay-cells .group").count():
                await page.reload()
            await expect(page.locator("#replay-cells")).to_contain_text("newly blocked")
            await page.goto(f"{made.url}/console/audit")
            await page.click("text=Verify the log")
            while not await page.locator("#audit-verify .pill").count():
                await page.reload()
            await expect(page.locator("#audit-verify")).to_contain_text("unchanged")


async def test_the_pages_of_a_try_and_of_a_record_have_no_serious_accessibility_problems(browser, tmp_path):
    (tmp_path / "strict.py").write_text(STRICT)
    path = write(tmp_path / "audit.jsonl")
    hooks = [RecordHook(tmp_path / "records")]
    async with console(tmp_path, agent(tmp_path, *hooks), rules=["strict.py"], audit=path) as made:
        async with made.logged_in(*ADMIN) as client:
            run = (await client.post("/runs", json={"task": "the letter", "wait": 30})).json()["id"]
            job = (await client.post("/replays", json={"rules": "strict.py", "runs": [run]})).json()["id"]
            await ended(client, f"/replays/{job}")
        for target in (f"/console/replay/{job}", "/console/audit/records/1-0"):
            for scheme in ("light", "dark"):
                async with opened(browser, made, target, login=ADMIN, color_scheme=scheme) as page:
                    await expect(page.locator(":is(#replay-cells .group, .record)").first).to_be_visible()
                    for each in await page.locator("#replay-cells summary").all():
                        await each.click()
                    assert await accessibility_problems(page) == []
