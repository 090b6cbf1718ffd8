"""Draw the pictures of the concept pages: order, settlement, batch, failure, state and layers."""

import asyncio
import tomllib
from pathlib import Path
from typing import Any

from hookline import AFTER_LLM, BEFORE_TOOL, HookRegistry, HookResult, guard, hook, observer
from hookline.testing import sample
from pictures.canvas import Canvas

ROOT = Path(__file__).parents[2]
PHASES = {"rewrite": "amber", "guard": "red", "observe": "blue"}
LAYERS = {
    "inherited": "of the run around it",
    "agent": "Agent(hooks=…)",
    "conversation": "ctx.hooks",
    "run": "run(…, hooks=…)",
}
EXAMPLE = {
    ("rewrite", "inherited"): (("mask", 50),),
    ("rewrite", "agent"): (("fix_path", 80), ("shorten", 40)),
    ("rewrite", "run"): (("add_note", 200),),
    ("guard", "inherited"): (("limits", 200), ("rails", 100)),
    ("guard", "conversation"): (("tenant", 0),),
    ("guard", "run"): (("dry_run", 200),),
    ("observe", "agent"): (("audit", 0),),
    ("observe", "conversation"): (("meter", 0),),
}
"""Phase and layer, and who is there, with priorities; docs/concepts/order.md has the same hooks."""


def order() -> Canvas:
    """Draw the order in which the hooks of a point are called."""
    pic = Canvas("The order of hooks at one point: phase, then layer, then priority", 372)
    left, width, row, top = 142, 178, 62, 84
    for column, (phase, tone) in enumerate(PHASES.items()):
        x = left + column * (width + 12)
        pic.box(x, 20, width, 332, tone, 12)
        pic.text(x + width / 2, 42, phase, tone, size=14, at="middle", bold=True)
        said = ("may rewrite", "judges what will run", "always sees the outcome")[column]
        pic.text(x + width / 2, 60, said, tone, size=11.5, at="middle")
    for number, (layer, where) in enumerate(LAYERS.items()):
        y = top + number * row
        pic.text(20, y + 24, layer, bold=True)
        pic.text(20, y + 41, where, "quiet", size=11)
        if number:
            pic.rule(20, y, left + 3 * width + 24)
    count = 0
    for column, (phase, tone) in enumerate(PHASES.items()):
        x = left + column * (width + 12)
        for number, layer in enumerate(LAYERS):
            here = EXAMPLE.get((phase, layer), ())
            for line, (name, priority) in enumerate(here):
                count += 1
                y = top + number * row + (8 if len(here) > 1 else 20) + line * 25
                pic.box(x + 10, y - 1, width - 20, 23, "plain", 11)
                pic.dot(x + 22, y + 10.5, 9, tone)
                pic.text(x + 22, y + 14.5, str(count), tone, size=11, at="middle", bold=True)
                pic.text(x + 38, y + 15, name, size=12, mono=True)
                pic.text(x + width - 18, y + 15, str(priority), "quiet", size=11.5, at="end")
    x = left + width + 6
    pic.label(x - 80, 330, 160, 26, "arguments validated", "green", size=11.5, bold=True, r=13)
    return pic


def called(verb: str, speaker: str) -> set[str]:
    """Fire a point and return the hooks that are still called after one hook returned a result."""
    point = AFTER_LLM if verb == "retry" else BEFORE_TOOL
    seen: set[str] = set()

    def speak(_: Any, payload: Any) -> HookResult:
        if verb == "fails":
            raise ValueError
        words: dict[str, Any] = {"replace": payload, "answer": "x", "ask": "?"}
        made: HookResult = getattr(HookResult, verb)(words.get(verb, ""))
        return made

    def witness(name: str) -> Any:
        return lambda _, __: seen.add(name)

    rank: Any = {"rewrite": hook, "guard": guard}[speaker]
    registry = HookRegistry([rank(point, priority=9)(speak)])
    for make, name in ((hook, "rewriters"), (guard, "guards"), (observer, "observers")):
        registry.register(make(point, name=name)(witness(name)))
    try:
        asyncio.run(registry.fire(point, sample(point)))
    except Exception:  # noqa: BLE001 - a closed failure, which is one of the rows
        assert verb == "fails", verb
    return seen - ({"rewriters"} if speaker == "guard" else set())


VERBS = {
    "replace": "those after it see the change",
    "stop": "holds from the next checkpoint on",
    "ask": "somebody must approve it first",
    "answer": "served, if no guard objects",
    "block": "the tool does not run",
    "retry": "once more, at most twice",
    "end": "the run is over, with this reply",
    "fails": "closed: it does not happen",
}


def settlement() -> Canvas:
    """Draw which hooks are still called after each verb."""
    pic = Canvas("Who is still called after a hook has spoken, verb by verb", 392)
    columns = {("rewrite", "rewriters"): 130, ("rewrite", "guards"): 197, ("rewrite", "observers"): 264}
    columns |= {("guard", "guards"): 345, ("guard", "observers"): 413}
    pic.box(94, 20, 206, 352, "amber", 12)
    pic.box(310, 20, 138, 352, "red", 12)
    pic.text(197, 42, "a rewriter says it", "amber", at="middle", bold=True)
    pic.text(379, 42, "a guard says it", "red", at="middle", bold=True)
    for (speaker, who), x in columns.items():
        pic.text(x, 64, who, {"rewrite": "amber", "guard": "red"}[speaker], size=10.5, at="middle")
    for number, (verb, what) in enumerate(VERBS.items()):
        y = 98 + number * 36
        if number:
            pic.rule(20, y - 18, 700)
        pic.text(20, y + 4, verb, mono=verb != "fails", bold=True)
        seen = {
            speaker: called(verb, speaker)
            for speaker in ("rewrite", "guard")
            if (verb, speaker) != ("replace", "guard")
        }
        for (speaker, who), x in columns.items():
            if speaker not in seen:
                continue
            if who in seen[speaker]:
                pic.dot(x, y, 10, "green")
                pic.tick(x, y, "green")
            else:
                pic.arrow((x - 6, y), (x + 6, y), tone="quiet", head=False)
        if "guard" not in seen:
            pic.text(379, y + 4, "a guard may not", "red", size=11.5, at="middle")
        pic.text(462, y + 4, what, size=12)
    return pic


BATCH = (
    ("read_file", "passes", "", "runs", "ok", "green"),
    ("delete_file", "blocked", "", "", "blocked", "red"),
    ("pay", "asked", "approved", "runs", "ok", "green"),
    ("weather", "answered", "", "", "answered", "violet"),
    ("guess", "invalid", "", "", "error", "red"),
)
STEPS = ("a  judge", "b  approve", "c  run", "d  look at it", "e  record")
HOW = (
    "before_tool\none by one, in order",
    "approval_requested\nall at once",
    "the tools\nconcurrently",
    "after_tool\nin call order",
    "the transcript\nall at once",
)
SAID = {"passes": "plain", "blocked": "red", "asked": "violet", "answered": "violet", "invalid": "red"}


def batch() -> Canvas:
    """Draw the path of five tool calls of one reply."""
    pic = Canvas("A batch of tool calls: judged, approved, run, looked at, recorded", 342)
    left, width, gap, row, top = 108, 114, 6, 40, 92
    for column, (name, how) in enumerate(zip(STEPS, HOW, strict=True)):
        x = left + column * (width + gap)
        pic.box(x, 20, width, 278, "quiet", 12)
        pic.text(x + width / 2, 42, name, at="middle", bold=True)
        first, second = how.split("\n")
        pic.text(x + width / 2, 59, first, "quiet", size=9.5, at="middle", mono="_" in first)
        pic.text(x + width / 2, 74, second, "quiet", size=10.5, at="middle")
    middle = [left + column * (width + gap) for column in range(5)]
    for number, (name, judged, asked, ran, outcome, tone) in enumerate(BATCH):
        y = top + number * row
        mid = y + 13
        pic.text(20, mid + 4, name, mono=True, size=12)
        pic.label(middle[0] + 8, y, width - 16, 26, f"{number + 1}  {judged}", SAID[judged], size=11.5, r=13)
        last = middle[0] + width - 8
        for column, cell, shade in ((1, asked, "violet"), (2, ran, "blue")):
            if cell:
                pic.arrow((last, mid), (middle[column] + 8, mid))
                pic.label(middle[column] + 8, y, width - 16, 26, cell, shade, size=11.5, r=13)
                last = middle[column] + width - 8
        pic.arrow((last, mid), (middle[3] + 8, mid))
        pic.label(middle[3] + 8, y, width - 16, 26, f"{number + 1}  {outcome}", tone, size=11.5, r=13)
        pic.arrow((middle[3] + width - 8, mid), (middle[4] + 8, mid))
    pic.box(middle[4] + 8, top - 2, width - 16, row * 5 - 8, "plain", 10)
    for number in range(len(BATCH)):
        pic.text(middle[4] + width / 2, top + number * row + 17, f"result {number + 1}", at="middle", size=12)
    pic.text(
        left + 2.5 * width + 2 * gap,
        322,
        "every call gets exactly one result, whatever happened to it",
        "quiet",
        size=11.5,
        at="middle",
    )
    return pic


FAILURES = (
    (
        "before the action",
        "before_llm, before_tool, …",
        "It does not happen;\nthe run fails.",
        "It happens without\nthis hook.",
    ),
    (
        "after the action",
        "after_llm, after_tool, …",
        "Nobody gets its output;\nthe run fails.",
        "The output stands\nas it is.",
    ),
    (
        "an observer",
        "such as an audit log",
        "The run fails, what\nstill runs is cancelled.",
        "The run goes on:\nthis is its default.",
    ),
    ("an approver", "approval_requested", "The call is denied.", "The next approver\nis asked; then denied."),
    ("the very end", "on_run_end", "The status is failed,\nafter all have been called.", "The result stands."),
    ("outside a run", "a message, a ticket, …", "Not sent, not handled,\nrejected, refused.", "It goes on."),
)


def failure() -> Canvas:
    """Draw the handling of hooks that raise, hang or return an invalid result."""
    pic = Canvas("What a failing hook does, by its on_failure and where it stands", 446)
    left, width, gap, row, top = 206, 236, 14, 54, 78
    heads = (("closed", "the default of hooks and guards", "red"), ("open", "the default of observers", "green"))
    for column, (name, when, tone) in enumerate(heads):
        x = left + column * (width + gap)
        pic.box(x, 20, width, 384, tone, 12)
        pic.text(x + width / 2, 42, f'on_failure="{name}"', tone, at="middle", mono=True, bold=True)
        pic.text(x + width / 2, 60, when, tone, size=11.5, at="middle")
    for number, (where, which, closed, opened) in enumerate(FAILURES):
        y = top + number * row
        if number:
            pic.rule(20, y - 1, left + 2 * width + gap)
        pic.text(20, y + 22, where, bold=True)
        pic.text(20, y + 39, which, "quiet", size=11)
        for column, words in enumerate((closed, opened)):
            rows = words.count("\n")
            pic.lines(left + column * (width + gap) + 16, y + 31 - rows * 8, words, heads[column][2], size=12)
    pic.text(
        20, 428, 'on_failure="block", at before_tool only: that one call is blocked, and the run goes on.', size=12
    )
    return pic


def state() -> Canvas:
    """Draw the stored transcript and the request of one model call."""
    pic = Canvas("The transcript is kept; a request is made of it for one model call", 400)
    pic.text(126, 40, "the transcript", at="middle", bold=True, size=14)
    pic.text(126, 57, "kept, saved, given to the next run", "quiet", size=11, at="middle")
    pic.text(594, 40, "the request", at="middle", bold=True, size=14)
    pic.text(594, 57, "what this one call sees", "quiet", size=11, at="middle")
    pic.box(20, 70, 212, 310, "quiet", 12)
    pic.box(488, 70, 212, 310, "quiet", 12)
    kept = (
        ("user", "plain"),
        ("assistant", "violet"),
        ("user", "plain"),
        ("assistant + calls", "violet"),
        ("tool results", "blue"),
    )
    for number, (role, tone) in enumerate(kept):
        pic.label(36, 86 + number * 46, 180, 32, role, tone)
    sent = (
        ("system prompt", "green"), ("user", "plain"), ("assistant + calls", "violet"), ("tool results, cut", "amber"),
        ("a note of a hook", "amber"),
    )  # fmt: skip
    for number, (role, tone) in enumerate(sent):
        pic.label(504, 86 + number * 46, 180, 32, role, tone)
    mid = 360
    pic.arrow((232, 196), (mid - 62, 196))
    pic.label(mid - 62, 182, 124, 28, "before_llm", "amber", mono=True, size=12, r=14)
    pic.arrow((mid + 62, 196), (488, 196))
    pic.lines(mid, 138, "adds, cuts, reorders:\nfor this call only", "quiet", size=11.5, at="middle")
    pic.text(594, 338, "the model", at="middle", bold=True)
    pic.lines(594, 355, "reads this, and nothing else", "quiet", size=11, at="middle")
    pic.arrow((488, 334), (mid + 62, 334))
    pic.label(mid - 62, 298, 124, 28, "after_llm", "amber", mono=True, size=12, r=14)
    pic.label(mid - 62, 338, 124, 28, "after_tool", "amber", mono=True, size=12, r=14)
    pic.arrow((mid - 62, 334), (232, 334))
    pic.lines(mid, 262, "what leaves here\nis what is kept", "quiet", size=11.5, at="middle")
    pic.box(36, 318, 180, 32, "quiet", 8, dashed=True)
    pic.text(126, 338, "the reply, its results", "quiet", at="middle")
    return pic


PARTS = {
    "cli": "the command line", "backtest": "rules on recorded runs", "explain": "why a run went as it did",
    "config": "settings, and an agent made of them", "testing": "for tests of your own hooks",
    "hooks": "hooks that are ready", "stores": "what is kept", "_web": "a web server", "_run": "the agent loop",
    "plugins": "bundles, switched on and off", "providers": "model vendors", "tools": "what a tool is",
    "models": "what a model is", "_kernel": "points, payloads, verbs, dispatch",
    "_base": "frozen data, threads, files", "records": "what hooks saw and decided", "_toolbox": "files, shell, fetch",
    "_net": "connections", "_sensitive": "finding sensitive values",
}  # fmt: skip
TINTS = {"_kernel": "amber", "_run": "violet", "hooks": "blue"}


def layers() -> Canvas:
    """Draw the layers as import-linter enforces them."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(each for each in contract if each["type"] == "layers")["layers"]
    rows = [[part.strip().removeprefix("hookline.") for part in line.split("|")] for line in found]
    rows = [row for row in rows if row[0] not in ("__main__", "pytest_plugin")]
    pic = Canvas("The layers of the code: each imports only from those below it", 36 + len(rows) * 36)
    for number, row in enumerate(rows):
        y = 22 + number * 36
        width = (612 - (len(row) - 1) * 10) / len(row)
        for column, name in enumerate(row):
            x = 20 + column * (width + 10)
            tone = TINTS.get(name, "plain")
            pic.box(x, y, width, 28, tone, 7)
            pic.text(x + 12, y + 19, name, tone, mono=True, size=12)
            if len(row) <= 2 and (about := PARTS.get(name)):
                pic.text(x + width - 12, y + 19, about, "quiet", size=11, at="end")
    bottom = 14 + len(rows) * 36
    pic.arrow((664, 22), (664, bottom))
    pic.lines(672, 22 + bottom / 2 - 22, "may\nimport", "quiet", size=11.5, step=14)
    return pic
