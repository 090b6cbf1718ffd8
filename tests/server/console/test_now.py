"""The first page shows the queue to those who see the runs of all callers."""

import re
import time

from hookline import Agent, ScriptedModel
from hookline.server.auth import RIGHTS
from hookline.stores.facts import Gate, ObservedRun, RunFact
from tests.waiting import wait_until

from ..rig import ME, Blocker
from .rig import console


async def test_the_first_page_shows_the_queue_and_the_slots_to_those_who_see_all_runs(tmp_path):
    blocker = Blocker()
    async with console(tmp_path, blocker.agent(), durable=True, max_runs=1) as made:
        for n in range(3):
            await made.server.service.start(ME, f"task {n}")
        await wait_until(lambda: blocker.entered == 1)
        async with made.logged_in(*RIGHTS) as browser:
            shown = (await browser.get("/")).text.partition('id="now-queue"')[2].partition("</p>")[0]
        assert "2 queued, the oldest for" in shown
        assert "1 of 1 slots of the workers are used" in shown
        async with made.logged_in("read") as browser:
            hidden = (await browser.get("/")).text.partition('id="now-queue"')[2].partition("</p>")[0]
        assert "slots" not in hidden
        blocker.open.set()


async def test_the_first_page_has_the_counts_of_today_and_what_is_usual(tmp_path):
    async with console(tmp_path) as made, made.browser() as browser:
        store, now = made.server.service.store, time.time()
        run = ObservedRun("run_1", "clerk", asked="clerk", owner="local")
        gates = (Gate("stay_inside", "guard", "block", 9, "outside", refused=True),)
        refused = [(0, 3), (1, 4), (2, 8)]  # days ago, and how many
        for days, count in refused:
            at = now // 86400 * 86400 - days * 86400 + 1.0
            fires = [
                RunFact(run, at, "fire", point="before_tool", tool="mail", gates=gates, refused=True, verb="block")
            ]
            model = RunFact(run, at, "model", model="m", source="model", cost=1.5)
            store.add([], [*fires * count, model, RunFact(run, at, "run", outcome="failed", duration=0.5)])
        tiles = re.findall(r'<a class="tile".*?</a>', (await browser.get("/")).text, re.DOTALL)
        words = [" ".join(re.sub(r"<[^>]+>", " ", tile).split()) for tile in tiles]
        assert words == [
            "Running 0 1 runs today, usually 1",
            "Waiting 0 for a person",
            "Refused today 3 usually 6",
            "Failed today 1 of 1 runs, usually 1",
            "Cost today $1.50 usually $1.50",
        ]
        store.add([], [RunFact(run, now, "model", model="own", source="model", cost=None)])
        assert "$1.50+" in (await browser.get("/")).text.partition('id="now-counts"')[2].partition("</nav>")[0]


async def test_the_obvious_address_leads_to_the_first_page_after_the_login(tmp_path):
    async with console(tmp_path) as made:
        async with made.logged_in("read") as browser:
            answer = await browser.get("/console")
            assert (answer.status_code, answer.headers["location"]) == (303, "/")
        async with made.browser() as stranger:  # now that there is a key, everybody has to log in
            answer = await stranger.get("/console")
            assert (answer.status_code, answer.headers["location"]) == (303, "/console/login?next=/console")


async def test_a_task_that_fails_again_for_the_same_reason_is_one_line(tmp_path):
    def down(request):
        raise RuntimeError("the model is down")

    agent = Agent("clerk", llm=ScriptedModel([down], loop=True))
    async with console(tmp_path, agent) as made, made.browser() as browser:
        for task in ("write the backup", "write the backup", "another"):
            await browser.post("/runs", json={"task": task, "wait": 30})
        failed = (await browser.get("/")).text.partition('id="now-failed"')[2].partition("</section>")[0]
        rows = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in re.findall(r"<li>.*?</li>", failed)]
        assert [re.sub(r" \d\S+Z", "", row) for row in rows] == [
            "another RuntimeError: the model is down",
            "write the backup RuntimeError: the model is down 2 times",
        ]
