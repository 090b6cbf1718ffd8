"""The page that tries rules on recorded runs, and its HTTP API."""

import asyncio
import json
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.records import RecordHook
from hookline.server import replay
from hookline.tape import TapeHook

from .rig import console
from .test_audit import ended, sections_of

PATH = "/console/replay"
CHOICE = r'class="choose" name="run" value="(run_\w+)"'

STRICT = '''
from hookline import BEFORE_TOOL, HookResult, guard

@guard(BEFORE_TOOL)
def careful(ctx, payload):
    """Refuse to touch letters."""
    if "letter" in payload.arguments["path"]:
        return HookResult.block("<i>letters</i> stay")
'''


@guard(BEFORE_TOOL)
def careful(ctx, payload):
    """Refuse to touch the cellar."""
    if "cellar" in payload.arguments["path"]:
        return HookResult.block("the cellar stays")


def agent(folder, *hooks):
    canary = folder / "executed"

    @tool
    def sweep(path: str) -> str:
        """Sweep a place."""
        with canary.open("a") as file:
            file.write(f"{path}\n")
        return f"{path} is clean"

    def turn(request):
        last = request.messages[-1]
        return reply("done") if last.role == "tool" else call("sweep", path=last.content)

    return Agent("maid", llm=ScriptedModel([turn], loop=True), tools=[sweep], hooks=[careful, *hooks])


@asynccontextmanager
async def recorded(
    folder,
    tasks=("the letter box", "the cellar", "the roof"),
    *,
    rules=STRICT,
    tapes=False,
    scopes=(),
    name="strict.py",
):
    """A browser at the console of a server with recorded runs and rules; the ids of the runs."""
    (folder / name).write_text(rules)
    kept = TapeHook(folder / "tapes") if tapes else RecordHook(folder / "records")
    options = {"tapes": folder / "tapes"} if tapes else {}
    async with console(folder, agent(folder, kept), rules=[name], **options) as made:
        async with made.logged_in("read", "run", "admin") as admin:
            ids = [(await admin.post("/runs", json={"task": task, "wait": 30})).json()["id"] for task in tasks]
            if not scopes:
                yield admin, ids
                return
        async with made.logged_in(*scopes) as browser:
            yield browser, ids


async def tried(browser, ids, rules="strict.py"):
    """Try rules over HTTP, and return the result."""
    answer = await browser.post("/replays", json={"rules": rules, "runs": ids})
    assert answer.status_code == 202, answer.text
    return await ended(browser, f"/replays/{answer.json()['id']}")


@pytest.mark.parametrize("tapes", [False, True])
async def test_the_calls_about_which_other_rules_decide_differently_are_listed_by_run(tmp_path, tapes):
    async with recorded(tmp_path, tapes=tapes) as (browser, ids):
        before = (tmp_path / "executed").read_text()
        found = await tried(browser, ids)
        assert found["status"] == "done", found
        letter, cellar, roof = found["result"]["runs"]
        (one,) = letter["differences"]
        assert (one["tool"], one["kind"], one["then"], one["certainty"]) == ("sweep", "newly blocked", "", "exact")
        assert one["now"] == "blocked by careful: <i>letters</i> stay"
        (one,) = cellar["differences"]
        assert (one["then"], one["now"]) == ("blocked by careful: the cellar stays", "")
        assert (roof["different"], roof["differences"]) == (0, [])
        assert found["result"]["hooks"] == ["careful"]
        assert found["result"]["headline"].startswith("2 of 3 runs would differ")
        assert (tmp_path / "executed").read_text() == before


AS_DATA = """
[[rules]]
name = "careful"
tools = "sweep"
when = "call.arguments.path.contains('letter') || call.arguments.path.contains('cellar')"
then = "block"
message = "Not there."
"""


async def test_rules_without_code_can_be_tried(tmp_path):
    pytest.importorskip("cel_expr_python", reason="rules need: pip install 'hookline[rules]'")
    async with recorded(tmp_path, rules=AS_DATA, name="rules.toml") as (browser, ids):
        found = await tried(browser, ids, "rules.toml")
        assert found["status"] == "done", found
        letter, cellar, roof = found["result"]["runs"]
        assert [each["now"] for each in letter["differences"]] == ["blocked by careful: Not there."]
        assert (cellar["different"], roof["different"]) == (1, 0)


async def test_the_table_is_that_of_the_command(tmp_path):
    async with recorded(tmp_path) as (browser, ids):
        cells = (await tried(browser, ids))["result"]["cells"]
        command = [sys.executable, "-m", "hookline", "backtest", "strict.py", "records", "--json"]
        printed = await asyncio.to_thread(subprocess.run, command, capture_output=True, cwd=tmp_path)
        report = json.loads(printed.stdout)
        wanted = [
            {
                **{name: cell[name] for name in ("hook", "point", "tool")},
                "kind": cell["kind"].replace("_", " "),
                **cell["count"],
            }
            for cell in report["cells"]
            if cell["kind"] != "same"
        ]
        assert cells == wanted
        assert [(each["kind"], each["exact"]) for each in cells] == [("newly blocked", 1), ("no longer blocked", 1)]
        page = (
            await browser.get(
                (await browser.get(PATH)).text.partition('id="try-')[2].partition('href="')[2].partition('"')[0]
            )
        ).text
        rows = re.findall(r'<summary class="grp".*?</summary>', page, re.DOTALL)
        shown = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]
        assert shown == [
            "1 careful newly blocked sweep before_tool 1 0 0",
            "1 careful no longer blocked sweep before_tool 1 0 0",
        ]


async def test_the_page_shows_the_recorded_decision_above_the_replayed_one(tmp_path):
    async with recorded(tmp_path) as (browser, ids):
        page = (await browser.get(PATH)).text
        assert re.findall(CHOICE, page) == ids[::-1]
        assert "strict.py" in page
        answer = await browser.post(PATH, data={"rules": "strict.py", "run": ids[:2]})
        target = answer.headers["location"]
        await ended(browser, f"/replays/{target.rpartition('/')[2]}")
        page = (await browser.get(target)).text
        part = page[page.index("no longer blocked</span>") :]
        assert part.index("Recorded") < part.index("by careful: the cellar stays") < part.index('data-label="Replayed"')
        assert "by careful: &lt;i&gt;letters&lt;/i&gt; stay" in page
        (digest,) = {each["digest"] for each in (await browser.get("/rules")).json()["rules"]}
        assert digest in page
        assert target in (await browser.get(PATH)).text


async def test_the_result_comes_to_an_open_page_by_itself(tmp_path):
    async with recorded(tmp_path, ["the letter"]) as (browser, ids):
        target = (await browser.post(PATH, data={"rules": "strict.py", "run": ids})).headers["location"]
        done = await sections_of(browser, f"{target}/live", lambda found: "newly blocked" in found["replay-cells"])
        assert "1 of 1 run would differ" in done["replay-head"]


async def test_all_runs_below_can_be_tried_at_once(tmp_path):
    async with recorded(tmp_path) as (browser, ids):
        answer = await browser.post(PATH, data={"rules": "strict.py", "all": "1", "shown": ids, "run": ids[:1]})
        found = await ended(browser, f"/replays/{answer.headers['location'].rpartition('/')[2]}")
        assert found["run_count"] == 3


async def test_the_page_of_a_run_leads_to_its_replay(tmp_path):
    async with recorded(tmp_path) as (browser, ids):
        target = f"{PATH}?run={ids[1]}"
        assert f'href="{target}"' in (await browser.get(f"/console/runs/{ids[1]}")).text
        page = (await browser.get(target)).text
        assert re.findall(CHOICE, page) == [ids[1]]
        assert re.search(rf'value="{ids[1]}"[^>]* checked', page)


async def test_the_filters_of_the_list_of_runs_choose_recorded_runs(tmp_path):
    async with recorded(tmp_path) as (browser, ids):
        for query, found in (("text=roof", [ids[2]]), ("verb=block", [ids[1]]), ("agent=nobody", [])):
            page = (await browser.get(f"{PATH}?{query}")).text
            assert re.findall(CHOICE, page) == found, query


async def test_runs_without_a_record_are_not_listed_and_cannot_be_tried(tmp_path):
    async with recorded(tmp_path) as (browser, ids):
        for file in (tmp_path / "records").glob("*.moments"):
            file.unlink()
        assert "No run is recorded yet." in (await browser.get(PATH)).text
        assert (await browser.get("/recordings")).json() == {"recordings": [], "next": ""}
        answer = await browser.post("/replays", json={"rules": "strict.py", "runs": ids})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_recorded")


async def test_only_rules_that_the_server_knows_and_runs_that_exist_can_be_tried(tmp_path):
    (tmp_path / "other.py").write_text("raise SystemExit")
    async with recorded(tmp_path, ["the roof"]) as (browser, ids):
        wrong = [(name, ids) for name in ("other.py", "/etc/passwd", "../strict.py", "", "strict.py:careful")]
        for name, runs in (*wrong, ("strict.py", ["run_nothing"]), ("strict.py", [])):
            status = 404 if runs else 422
            assert (await browser.post(PATH, data={"rules": name, "run": runs})).status_code == status, name
            assert (await browser.post("/replays", json={"rules": name, "runs": runs})).status_code == status, name
        assert (await browser.get("/replays")).json() == {"replays": []}


BROKEN = {
    "raise ValueError('no rules today')": "no rules today",
    "x = 1": "strict.py",
    "import os; os._exit(3)": "exit code 3",
}


async def test_rules_that_cannot_be_loaded_are_reported_and_harm_nothing(tmp_path):
    async with recorded(tmp_path, ["the roof"]) as (browser, ids):
        for rules, message in BROKEN.items():
            (tmp_path / "strict.py").write_text(rules)
            found = await tried(browser, ids)
            assert (found["status"], message in found["error"]) == ("failed", True), (rules, found)
        page = (await browser.get(f"{PATH}/{found['id']}")).text
        assert "The rules could not be tried" in page
        (tmp_path / "strict.py").unlink()
        assert "cannot be read" in (await browser.get(PATH)).text
        assert (await tried(browser, ids))["status"] == "failed"


async def test_a_rule_that_raises_for_a_call_is_named_with_its_error(tmp_path):
    rules = STRICT.replace('return HookResult.block("<i>letters</i> stay")', "1 / 0")
    async with recorded(tmp_path, ["the letter"], rules=rules) as (browser, ids):
        found = await tried(browser, ids)
        (run,) = found["result"]["runs"]
        assert "careful: raised: ZeroDivisionError: division by zero" in run["problems"]
        assert "division by zero" in (await browser.get(f"{PATH}/{found['id']}")).text


@pytest.mark.slow
async def test_a_rule_that_hangs_is_stopped_and_named(tmp_path):
    rules = STRICT.replace('return HookResult.block("<i>letters</i> stay")', "while True: pass")
    async with recorded(tmp_path, ["the letter", "the cellar"], rules=rules) as (browser, ids):
        letter, cellar = (await tried(browser, ids))["result"]["runs"]
        assert any(each.startswith("careful: timed out") for each in letter["problems"]), letter
        assert cellar["different"] == 1


async def test_rules_are_loaded_in_another_process_and_may_not_write_or_print_into_the_answer(tmp_path):
    canary = tmp_path / "canary"
    rules = f"print('{{\"result\": 1}}', flush=True)\nimport builtins\nbuiltins.mark = 1\n{STRICT}".replace(
        "    if ", f"    open({str(canary)!r}, 'w').close()\n    if "
    )
    async with recorded(tmp_path, ["the letter"], rules=rules) as (browser, ids):
        found = await tried(browser, ids)
        assert found["status"] == "done"
        assert "refused" in str(found["result"]["runs"][0]["problems"])
        assert not canary.exists()
        import builtins

        assert not hasattr(builtins, "mark")


async def test_a_changed_file_is_tried_as_it_is_now_with_its_new_digest(tmp_path):
    async with recorded(tmp_path, ["the roof"]) as (browser, ids):
        first = await tried(browser, ids)
        (tmp_path / "strict.py").write_text(STRICT.replace("letter", "roof"))
        second = await tried(browser, ids)
        assert (first["result"]["runs"][0]["different"], second["result"]["runs"][0]["different"]) == (0, 1)
        assert first["result"]["digest"] != second["result"]["digest"]
        (known,) = (await browser.get("/rules")).json()["rules"]
        assert known["digest"] == second["result"]["digest"]


async def test_a_try_can_be_cancelled_and_shows_its_progress(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(replay, "PROCESS", "endless_process")
    async with recorded(tmp_path, ["the roof"]) as (browser, ids):
        target = (await browser.post(PATH, data={"rules": "strict.py", "run": ids})).headers["location"]
        page = await sections_of(browser, f"{target}/live", lambda found: "25 %" in found["replay-head"])
        assert "<progress" in page["replay-head"]
        assert (await browser.post(f"{target}/cancel")).status_code == 303
        assert "This try was cancelled." in (await browser.get(target)).text
        assert (await browser.post(f"{target}/cancel")).status_code == 409
        assert (await browser.get(f"{PATH}/job_nothing")).status_code == 404


async def test_callers_without_the_right_admin_see_neither_the_pages_nor_a_link(tmp_path):
    async with recorded(tmp_path, ["the roof"], scopes=("read", "run", "approve")) as (browser, ids):
        paths = (PATH, "/recordings", "/rules", "/replays", f"/runs/{ids[0]}/record", f"/runs/{ids[0]}/tape")
        for path in paths:
            assert (await browser.get(path)).status_code == 403, path
        assert (await browser.post(PATH, data={"rules": "strict.py", "run": ids})).status_code == 403
        assert (await browser.post("/replays", json={"rules": "strict.py", "runs": ids})).status_code == 403
        assert PATH not in (await browser.get("/console/runs")).text


async def test_a_server_without_records_and_rules_says_how_to_get_them(tmp_path):
    async with console(tmp_path) as made, made.logged_in("read", "admin") as browser:
        page = (await browser.get(PATH)).text
        assert "--record" in page
        assert "--rules" in page


async def test_a_tape_and_a_record_can_be_downloaded_and_backtested(tmp_path):
    from hookline.backtest import backtest

    for tapes in (False, True):
        folder = tmp_path / str(tapes)
        folder.mkdir()
        async with recorded(folder, tapes=tapes) as (browser, ids):
            what, other = ("tape", "record") if tapes else ("record", "tape")
            answer = await browser.get(f"/runs/{ids[1]}/{what}")
            assert "attachment" in answer.headers["content-disposition"]
            file = folder / f"downloaded.{'tape' if tapes else 'moments'}"
            file.write_bytes(answer.content)
            report = await asyncio.to_thread(backtest, str(folder / "strict.py"), [file])
            assert (report.runs, report.total("no_longer_blocked").total) == (1, 1)
            assert (await browser.get(f"/runs/{ids[1]}/{other}")).status_code == 404
            listed = (await browser.get("/recordings")).json()["recordings"]
            assert [(each["run_id"], each["tape"]) for each in listed] == [(id, tapes) for id in ids[::-1]]
