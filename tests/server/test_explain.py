"""``GET /runs/{id}/explain``."""

import pytest

from hookline import Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.config.settings import Settings
from hookline.points import BEFORE_TOOL
from hookline.records.hook import RecordHook
from hookline.server import Caller
from hookline.server.build import build_server
from hookline.tape import TapeHook

from .walk import bearer, client_of


@tool
def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


@guard(BEFORE_TOOL)
def keep_files(ctx, request):
    return HookResult.block("No file is deleted.", reason="rule 3")


class Served:
    """A server with one finished run of the caller ``ann``."""

    def __init__(self, folder, *, record=True, tapes=False):
        model = ScriptedModel([call("delete", path="a.txt"), reply("I could not.")], loop=True)
        hooks = [keep_files, *([RecordHook(folder / "records")] if record else [])]
        hooks += [TapeHook(folder / "tapes")] if tapes else []
        settings = Settings(
            server={"port": 0},
            runs=str(folder / "runs.db"),
            sessions=str(folder / "sessions"),
            approval_file=str(folder / "approvals.db"),
            tapes=str(folder / "tapes") if tapes else "",
        )
        self.server = build_server(settings, Agent("helper", llm=model, tools=[delete], hooks=hooks), home=folder)

    async def begin(self):
        await self.server.service.open()
        keys = self.server.keys
        row, self.ann = keys.add("ann", ("read", "run", "approve"))
        self.admin = keys.add("root", ("read", "admin"))[1]
        caller = Caller(row.id, row.name, frozenset(("read", "run")))
        run = await self.server.service.start(caller, "Delete a.txt")
        self.run = await self.server.service.wait(run.id, caller, 30)
        assert self.run.status == "completed"

    async def get(self, key, id="", **headers):
        async with client_of(self.server.routes()) as client:
            return await client.get(f"/runs/{id or self.run.id}/explain", headers={**bearer(key), **headers})

    async def end(self):
        await self.server.service.close(grace=0)
        for close in self.server._closing:
            close()


@pytest.fixture
async def served(tmp_path):
    made = Served(tmp_path)
    await made.begin()
    yield made
    await made.end()


async def test_an_operator_gets_the_page_of_a_recorded_run(served):
    answer = await served.get(served.admin)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert policy.endswith("frame-ancestors 'none'")
    assert served.run.id in answer.text
    assert "rule 3" in answer.text


async def test_the_same_is_available_as_json(served):
    answer = await served.get(served.admin, Accept="application/json")
    view = answer.json()
    assert (view["id"], view["status"]) == (served.run.id, "completed")
    assert view["steps"][1]["items"][1]["outcome"] == "blocked"


async def test_the_caller_of_a_run_does_not_see_what_hooks_hid_from_it(served):
    answer = await served.get(served.ann)
    assert answer.status_code == 403
    assert "rule 3" not in answer.text


@pytest.mark.parametrize(
    ("id", "accept", "status"),
    [("run_unknown", "text/html", 404), ("", "image/png", 406), ("last", "text/html", 404), ("..%2f..", "*/*", 404)],
)
async def test_other_requests_are_refused(served, id, accept, status):
    assert (await served.get(served.admin, id, Accept=accept)).status_code == status


async def stored_view_of(served, why):
    """Check that the run is shown from what is stored about it, and that the first note says why."""
    answer = await served.get(served.admin, Accept="application/json")
    view = answer.json()
    assert (answer.status_code, view["id"], view["status"]) == (200, served.run.id, "completed")
    assert view["notes"][0].startswith("No record: ")
    assert why in view["notes"][0]
    assert "rule 3" in answer.text
    page = await served.get(served.admin)
    assert (page.status_code, why in page.text) == (200, True)


async def test_a_run_whose_record_was_deleted_is_shown_from_what_is_stored(served, tmp_path):
    files = list((tmp_path / "records").rglob("*.moments"))
    assert files
    for file in files:
        file.unlink()
    await stored_view_of(served, "there is no record of the run")


async def test_a_tape_of_another_version_is_reported_with_what_to_do(tmp_path):
    made = Served(tmp_path, record=False, tapes=True)
    await made.begin()
    try:
        assert (await made.get(made.admin)).status_code == 200
        (tape,) = (tmp_path / "tapes").glob("*.tape")
        tape.write_bytes(tape.read_bytes().replace(b'"version":5,', b'"version":3,', 1))
        await stored_view_of(made, "record it again, or use the version of Hookline that wrote it")
    finally:
        await made.end()


async def test_a_server_that_does_not_record_says_so(tmp_path):
    made = Served(tmp_path, record=False)
    await made.begin()
    try:
        await stored_view_of(made, "record = true")
    finally:
        await made.end()
