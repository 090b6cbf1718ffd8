"""The console, ``/stats``, ``hookline stats``, the audit log and the metrics have the same sums, after any runs."""

import asyncio
import html
import json
import logging
import random
import re
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hookline import (
    AFTER_LLM,
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    Agent,
    HookResult,
    Limits,
    ScriptedModel,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.cli.app import run_app
from hookline.hooks import AuditLogHook, MetricsHook, ObservabilityHook, shadow
from hookline.payloads import Usage

from .console.rig import console
from .rig import ADMIN


@tool
def work(kind: str, n: int) -> str:
    """Do something."""
    if kind == "broken":
        raise ValueError("it broke")
    return kind


@guard(BEFORE_TOOL)
def rules(ctx, request):
    kind = request.arguments["kind"]
    results = {
        "forbidden": HookResult.block("never", reason="rule 3"),
        "risky": HookResult.ask("May it?"),
        "stops": HookResult.stop("Enough."),
        "ends": HookResult.end("Over."),
    }
    return results.get(kind)


@hook(BEFORE_TOOL)
def changes(ctx, request):
    kind = request.arguments["kind"]
    if kind == "typo":
        return HookResult.replace({"arguments": {**request.arguments, "kind": "fine"}})
    return HookResult.answer("known") if kind == "known" else None


@guard(BEFORE_TOOL, on_failure="block")
def brittle(ctx, request):
    if request.arguments["kind"] == "unlucky":
        raise OSError("gone")


@guard(BEFORE_TOOL, name="trial")
def trial(ctx, request):
    return HookResult.block("would it?") if request.arguments["n"] % 3 == 0 else None


@hook(AFTER_LLM)
def wording(ctx, answer):
    return HookResult.retry("say it again") if answer.content == "mumble" else None


@hook(APPROVAL_REQUESTED)
def approver(ctx, request):
    number = request.call.arguments["n"]
    if number % 3 == 0:
        return HookResult.deny("no")
    if number % 3 == 1:
        return HookResult.approve()
    return HookResult.approve(arguments={**request.call.arguments, "kind": "fine"})


KINDS = ("fine",) * 6 + ("forbidden", "risky", "risky", "typo", "known", "unlucky", "broken", "stops", "ends", "mumble")


def random_model():
    """A model that does what the task says, which is a number."""
    plans = {}

    def turn(request):
        task = next(str(each.content) for each in request.messages if each.role == "user")
        plan = plans.setdefault(task, random.Random(task))
        used = {"usage": Usage(plan.randrange(1, 50), plan.randrange(1, 20)), "cost": plan.randrange(8) / 8}
        used["model"] = plan.choice(("small", "large"))
        if plan.random() < 0.3:
            return reply("done", **used)
        kinds = [plan.choice(KINDS) for _ in range(plan.randrange(1, 4))]
        if "mumble" in kinds:
            return reply("mumble", **used)
        calls = tuple(call("work", kind=kind, n=plan.randrange(100)) for kind in kinds)
        return reply("", tool_calls=calls, **used)

    return ScriptedModel([turn], loop=True)


def facts_of(stats):
    """The numbers that everybody has, from the statistics."""
    totals = stats["totals"]
    verdicts = Counter()
    for each in stats["hooks"]:
        verdicts.update({(each["hook"], verb): n for verb, n in each["verbs"].items() if verb != "cont"})
    return {
        "runs": totals["statuses"],
        "model calls": totals["model_calls"],
        "tokens": totals["input_tokens"] + totals["output_tokens"],
        "cost": totals["cost"],
        "tools": {outcome: n for each in stats["tools"] for outcome, n in each["outcomes"].items()},
        "verdicts": dict(verdicts),
        "refused": sum(each["count"] for each in stats["refusals"]),
        "approvals": {decision: n for each in stats["approvals"] for decision, n in each["decisions"].items()},
    }


def from_audit(path):
    """The same numbers, from the audit log; it does not say what was refused."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_type = {kind: [each for each in lines if each["type"] == kind] for kind in {each["type"] for each in lines}}
    models = [each for each in by_type["model"] if each.get("source", "model") == "model"]
    return {
        "runs": Counter(each["status"] for each in by_type["run_end"]),
        "model calls": len(models),
        "tokens": sum(each["input_tokens"] + each["output_tokens"] for each in models),
        "cost": sum(each["cost"] for each in models),
        "tools": Counter(each["outcome"] for each in by_type["tool"]),
        "verdicts": Counter((each["hook"], each["verb"]) for each in by_type["verdict"]),
        "approvals": Counter(each["decision"] for each in by_type["approval"]),
    }


def from_metrics(text):
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))

    def sums(name, *labels):
        counted = Counter()
        for given, value in found.get(name, ()):
            counted[tuple(given[label] for label in labels)] += value
        return {key[0] if len(key) == 1 else key: n for key, n in counted.items() if n}

    return {
        "runs": sums("hookline_runs_total", "status"),
        "model calls": sums("hookline_model_calls_total").get((), 0),
        "tokens": sum(n for kind, n in sums("hookline_tokens_total", "kind").items() if kind != "cached"),
        "cost": sums("hookline_cost_usd_total").get((), 0),
        "tools": sums("hookline_tool_calls_total", "outcome"),
        "verdicts": sums("hookline_verdicts_total", "hook", "verb")
        | {(name, "failed"): n for name, n in sums("hookline_hook_failures_total", "hook").items()},
        "approvals": sums("hookline_approvals_decided_total", "decision"),
    }


async def from_console(browser):
    """The same numbers, from what the pages Hooks, Cost and Blocked show."""
    page = (await browser.get("/console/hooks?range=all")).text
    verdicts = Counter()
    for link, text in re.findall(r'<a class="vc ?[^"]*" href="([^"]*)"[^>]*>(.*?)</a>', page, re.DOTALL):
        query = dict(each.split("=") for each in html.unescape(link).partition("?")[2].split("&"))
        if query["verb"] != "shadow":
            verdicts[query["hook"], query["verb"]] += int(text.rpartition(">")[2].replace(",", ""))
    cost = (await browser.get("/console/cost?range=all")).text
    rows = re.search(r"Tokens and cost by agent</caption>(.*?)</table>", cost, re.DOTALL)[1].partition("<tbody>")[2]
    cells = [
        re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in re.findall(r"<tr>(.*?)</tr>", rows, re.DOTALL)
    ]
    numbers = [[re.sub(r"<[^>]+>|[,$\s]", "", cell) for cell in row] for row in cells]
    refused, address = 0, "/console/blocked?by=events"
    while address:
        text = (await browser.get(address)).text
        refused += len(re.findall(r'<tr id="refusal-', text))
        following = re.search(r'href="([^"]*)" rel="next"', text)
        address = html.unescape(following[1]) if following else ""
    return {
        "model calls": sum(int(row[-5]) for row in numbers),
        "tokens": sum(int(row[-4]) + int(row[-2]) for row in numbers),
        "cost": sum(float(row[-1]) for row in numbers),
        "verdicts": dict(verdicts),
        "refused": refused,
    }


async def compare(folder, monkeypatch, capsys, runs):
    monkeypatch.setattr("hookline.server.console.runs.ROWS", 1000)
    monkeypatch.setattr(logging.getLogger("hookline"), "disabled", True)  # hooks fail on purpose
    metrics, audit = MetricsHook(), AuditLogHook(folder / "audit.jsonl", fsync="never")
    recorder = ObservabilityHook(folder / "runs.db")  # it must not count the runs of the server twice
    guards = [rules, changes, brittle, shadow(trial), wording, approver]
    agent = Agent(
        "worker", llm=random_model(), tools=[work], hooks=[metrics, audit, recorder, *guards], limits=Limits(steps=12)
    )
    async with (
        console(folder, agent, max_runs=8, max_queued=runs, max_runs_per_caller=runs) as made,
        made.logged_in("admin", "read", "run") as browser,
    ):
        service = made.server.service
        for first in range(0, runs, 50):
            started = [await service.start(ADMIN, str(n)) for n in range(first, min(first + 50, runs)) if not n % 4]
            own = [agent.start(str(n)) for n in range(first, min(first + 50, runs)) if n % 4]
            await asyncio.gather(*(service.wait(run.id, ADMIN) for run in started))
            await asyncio.gather(*(run.result() for run in own), return_exceptions=True)
        await asyncio.to_thread(recorder.flush)
        answer = await browser.get("/stats", params={"since": 1})
        shown = await from_console(browser)
    audit.flush()
    assert run_app(["stats", recorder.store.path, "--json"]) == 0
    expected = facts_of(json.loads(capsys.readouterr().out))
    assert sum(expected["runs"].values()) == runs
    assert expected["refused"] > runs / 10
    others = {
        "/stats": facts_of(answer.json()),
        "console": shown,
        "audit log": from_audit(folder / "audit.jsonl"),
        "metrics": from_metrics(metrics.text()),
    }
    for name, found in others.items():
        for about, number in found.items():
            wanted = pytest.approx(expected[about], abs=0.01) if about == "cost" else expected[about]
            assert number == wanted, (name, about)


@pytest.mark.sqlite  # hookline stats names the file
async def test_console_stats_audit_log_and_metrics_agree_on_random_runs(tmp_path, monkeypatch, capsys):
    await compare(tmp_path, monkeypatch, capsys, 200)


@pytest.mark.sqlite
@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_console_stats_audit_log_and_metrics_agree_on_many_random_runs(tmp_path, monkeypatch, capsys):
    await compare(tmp_path, monkeypatch, capsys, 10_000)
