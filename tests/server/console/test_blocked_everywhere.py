"""One blocked call, in every place where people look for it: each names the hook and its reason."""

import asyncio
import subprocess
import sys
from contextlib import closing

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.hooks import AuditLogHook, ObservabilityHook, OpenTelemetryHook
from hookline.records import RecordHook
from hookline.stores import AuditLog
from hookline.stores.runs import RunStore
from hookline.tape import TapeHook

from .rig import console

REASON = "mail would leave the company"


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    raise AssertionError("the guard blocks it")


@guard(BEFORE_TOOL, tools="send_mail")
def stay_inside(ctx, request):
    return HookResult.block("Mail goes to colleagues only.", reason=REASON)


async def test_a_blocked_call_is_visible_everywhere_with_its_hook_and_its_reason(tmp_path):
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    log = AuditLog(tmp_path / "audit.jsonl")
    statistics = ObservabilityHook(str(tmp_path / "runs.db"))
    recorders = [AuditLogHook(log), RecordHook(tmp_path / "records"), TapeHook(tmp_path / "tapes")]
    model = ScriptedModel([call("send_mail", to="pal@example.org"), reply("I may not.")])
    hooks = [stay_inside, *recorders, statistics, OpenTelemetryHook(provider)]
    agent = Agent("clerk", llm=model, tools=[send_mail], hooks=hooks)
    places = {}
    async with console(tmp_path, agent) as made, made.browser() as browser:
        answer = await browser.post("/runs", json={"task": "Mail it.", "wait": 30})
        run_id = answer.json()["id"]
        statistics.flush(10)
        log.flush(10)
        pages = {"the first page": "/", "a list": "/console/blocked", "the run": f"/console/runs/{run_id}"}
        for place, path in (pages | {"the events of the API": f"/runs/{run_id}/events"}).items():
            places[place] = (await browser.get(path)).text
    places["the audit log"] = log.path.read_text()
    (tape,) = (tmp_path / "tapes").glob("**/*.tape")
    for place, command in (
        ("the terminal", ("replay", str(tape), "--show")),
        ("the explanation", ("explain", run_id, "--records", str(tmp_path / "records"))),
    ):
        places[place] = await asyncio.to_thread(hookline, *command)
    with closing(RunStore(str(tmp_path / "runs.db"))) as store:
        places["the statistics"] = str(store.verdicts(run_id))
    (span,) = [each for each in exporter.get_finished_spans() if each.name == "execute_tool send_mail"]
    assert span.status.status_code is StatusCode.ERROR
    places["the trace"] = str(span.status.description)
    missing = [place for place, text in places.items() if "stay_inside" not in text or REASON not in text]
    assert missing == []


def hookline(*arguments):
    done = subprocess.run([sys.executable, "-m", "hookline", *arguments], capture_output=True, text=True, check=True)
    return " ".join(done.stdout.split())  # lines are wrapped
