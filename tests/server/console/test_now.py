"""The first page shows the queue to those who see the runs of all callers."""

from hookline.server.auth import RIGHTS
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
