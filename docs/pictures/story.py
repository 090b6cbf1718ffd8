"""Draw the animated picture of the README: a mail is blocked, a payment asks, a stricter rule is tried on old runs.

The calls are those of real runs under the hooks below, with a scripted model; the answer of the stricter rule is that
of a real backtest.
"""

import re
import tempfile
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from hookline import (
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    Agent,
    AgentContext,
    ApprovalRequest,
    HookResult,
    ScriptedModel,
    ToolCallRequest,
    ToolCallResult,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.backtest import backtest
from hookline.backtest.report import headline, how_sure
from hookline.explain import SIGNS, ToolCallView, asset, explain
from hookline.explain.gates import GateCall
from hookline.explain.view import call_gates
from hookline.hooks import Hook
from hookline.records import RecordHook, read_runs

from .canvas import MONO, SANS

# The office: its tools, its hooks, and the rule to try.


@tool
def read_invoice(number: int) -> str:
    """Read an invoice."""
    return f"Invoice {number}, account DE44 5001 0517 5407 3249 31."


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


@tool
def pay(invoice: int, euros: int) -> str:
    """Pay an invoice."""
    return f"{euros} euros are on their way."


@guard(BEFORE_TOOL)
def stay_inside(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Block mail to strangers."""
    if not str(request.arguments.get("to", "@example.com")).endswith("@example.com"):
        return HookResult.block("Mail goes to colleagues only.", reason="mail would leave the company")
    return None


@guard(BEFORE_TOOL)
def large_sums(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Let a person decide about large sums."""
    if request.arguments.get("euros", 0) > 1000:
        return HookResult.ask("Pay this invoice?", reason="more than 1,000 euros")
    return None


@guard(BEFORE_TOOL)
def known_tools(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Block tools that are new."""
    return None if request.name in ("read_invoice", "send_mail", "pay") else HookResult.block("That tool is new.")


@hook(AFTER_TOOL)
def hide_accounts(ctx: AgentContext, done: ToolCallResult) -> HookResult | None:
    """Hide account numbers from the model."""
    hidden = done.text.replace("DE44 5001 0517 5407 3249 31", "[hidden]")
    if hidden == done.text:
        return None
    return HookResult.replace(done.with_text(hidden), reason="the result had an account number")


@hook(APPROVAL_REQUESTED)
def a_person(ctx: AgentContext, request: ApprovalRequest) -> HookResult:
    """Approve each call."""
    return HookResult.approve(by="you")


@guard(BEFORE_TOOL)
def small_sums_only(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Block sums above 500 euros."""
    if request.arguments.get("euros", 0) > 500:
        return HookResult.block("Pay at most 500 euros.", reason="more than 500 euros")
    return None


HOOKS: list[Hook] = [known_tools, stay_inside, large_sums, hide_accounts, a_person]
YESTERDAY = (
    120,
    340,
    1480,
    90,
    260,
    610,
    75,
    410,
    30,
    2200,
    180,
    55,
    480,
    95,
    720,
    310,
    60,
    1150,
    220,
    45,
    390,
    540,
    80,
    150,
)
"""The sums of the invoices of the recorded runs."""


class CallLine(NamedTuple):
    """A call of a run: its tool, its arguments, its gates and the decision about its approval."""

    tool: str
    arguments: str
    gates: list[GateCall]
    decided_by: str
    question: str


def record(folder: Path, *calls: Any) -> list[CallLine]:
    """Run an agent that makes these calls, and return them as they were recorded."""
    model = ScriptedModel([*calls, reply("Done.")])
    tools: list[Any] = [read_invoice, send_mail, pay]
    Agent("office", llm=model, tools=tools, hooks=[*HOOKS, RecordHook(folder, redact=False)]).run("Do the post.")
    *_, last = read_runs([folder])
    view = explain(last)
    return [
        CallLine(
            item.tool,
            " ".join(f"{name}={value}" for name, value in item.arguments),
            call_gates(item, view.chains, is_open=False),
            item.decided_by,
            " ".join(item.questions),
        )
        for step in view.steps
        for item in step.items
        if isinstance(item, ToolCallView)
    ]


class Tried(NamedTuple):
    """The effect of the stricter rule on the recorded runs: of each run, its gates and its new verdict."""

    runs: list[tuple[list[GateCall], bool]]
    headline: str
    sure: str


def try_stricter_rule(folder: Path) -> Tried:
    """Record a run for each sum, and judge the runs with the stricter rule."""
    lines = [
        record(folder / f"{number:02}", call("pay", invoice=200 + number, euros=euros))
        for number, euros in enumerate(YESTERDAY)
    ]
    reports = [backtest([small_sums_only], [folder / f"{number:02}"], workers=1) for number in range(len(YESTERDAY))]
    total = reports[0].merge(reports)
    runs = [
        (line.gates, report.total("newly_blocked").total > 0) for (line,), report in zip(lines, reports, strict=True)
    ]
    return Tried(runs, headline(total), how_sure(total))


# The drawing.

CYCLE = 19.0
"""Seconds after which the picture begins again."""
WIDTH, HEIGHT = 880, 484
COLUMNS = {"known_tools": 262.0, "stay_inside": 338.0, "large_sums": 412.0, "hide_accounts": 552.0}
START, CALL, END, RIGHT = 226.0, 480.0, 592.0, 624.0
SPEED = 260.0
"""Pixels that a line grows in a second."""
_TOKEN = re.compile(r"--([a-z-]+): light-dark\(([^,()]+), ([^()]+)\)")
_USED = (
    *("bg", "ink", "soft", "faint", "line", "wire", "gate", "tool", "accent", "on-accent", "card"),
    *("red", "amber", "amber-fill", "amber-edge", "violet"),
)
"""The colours of ``theme.css`` that the picture uses."""


class Story:
    """The picture under construction. Without animation, everything is shown as it is at the end."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.rules: dict[str, str] = {}

    def _frames(self, name: str, begin: float, end: float | None, hidden: str, shown: str) -> str:
        """Return the name of an animation that shows something from ``begin``, and until ``end`` if there is one."""
        first, last = begin / CYCLE * 100, (CYCLE - 0.6 if end is None else end) / CYCLE * 100
        left = "opacity:0" if end is None else hidden
        self.rules[name] = (
            f"@keyframes {name}{{0%,{first:.2f}%{{{hidden}}}{first + 1.2:.2f}%,{last:.2f}%{{{shown}}}"
            f"{min(last + 1.2, 100):.2f}%,100%{{{left}}}}}.{name}{{animation-name:{name}}}"
        )
        return name

    def appear(self, at: float, *parts: str, until: float | None = None) -> None:
        """Add parts that appear at a time. What disappears again is not in the still picture."""
        name = f"a{at * 10:.0f}" + ("" if until is None else f"_{until * 10:.0f}")
        kind = self._frames(name, at, until, "opacity:0", "opacity:1")
        gone = "" if until is None else " gone"
        self._parts.append(f'<g class="t {kind}{gone}">{"".join(parts)}</g>')

    def always(self, *parts: str) -> None:
        """Add parts that are shown all the time."""
        self._parts.extend(parts)

    def wire(self, x: float, to: float, y: float, at: float, *, dotted: str = "") -> float:
        """Add a piece of a line that grows, and return when it is complete."""
        done = at + (to - x) / SPEED
        if dotted:
            self.appear(at, f'<path class="wire {dotted}" d="M{x:g} {y:g}H{to:g}"/>')
            return done
        name = f"w{at * 100:.0f}_{done * 100:.0f}"
        first, last = at / CYCLE * 100, done / CYCLE * 100
        self.rules[name] = (
            f"@keyframes {name}{{0%,{first:.2f}%{{stroke-dashoffset:1;opacity:1}}"
            f"{last:.2f}%,97%{{stroke-dashoffset:0;opacity:1}}100%{{stroke-dashoffset:0;opacity:0}}}}.{name}{{animation-name:{name}}}"
        )
        self._parts.append(f'<path class="wire grows t {name}" pathLength="1" d="M{x:g} {y:g}H{to:g}"/>')
        return done

    def svg(self, title: str) -> str:
        """Return the picture."""
        size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
                f"<title>{escape(title)}</title>",
                f"<style>{self._style()}</style>",
                *self._parts,
                "</svg>\n",
            )
        )

    def _style(self) -> str:
        found = {name: (light, dark) for name, light, dark in _TOKEN.findall(asset("theme.css")) if name in _USED}
        light, dark = ("".join(f"--{name}:{each[shade]};" for name, each in found.items()) for shade in (0, 1))
        return (
            f"svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
            f"text{{font:13px Inter,ui-sans-serif,{SANS};fill:var(--ink)}}text.m{{font-family:{MONO}}}"
            "text.s{font-size:12px;fill:var(--soft)}text.f{font-size:11px;fill:var(--faint)}text.b{font-weight:600}"
            "text.c{text-anchor:middle}text.e{text-anchor:end}text.h{font-size:15px;letter-spacing:-.01em}"
            "text.red{fill:var(--red)}text.amber{fill:var(--amber)}text.violet{fill:var(--violet)}"
            ".paper{fill:var(--bg);stroke:var(--line)}.rule{stroke:var(--line)}"
            ".wire{stroke:var(--wire);stroke-width:1.5;fill:none}.dots{stroke-dasharray:1 4;stroke-linecap:round}"
            ".grows{stroke-dasharray:1;stroke-dashoffset:0}"
            ".g{fill:none;stroke-width:1.5;stroke-linecap:round;stroke-linejoin:round}"
            ".passed circle{fill:var(--bg);stroke:var(--gate)}.skipped circle{fill:var(--wire)}"
            ".changed path{fill:var(--amber-fill);stroke:var(--amber-edge);stroke-width:1.25}"
            ".asked circle{fill:var(--violet)}.asked .in{stroke:var(--bg)}"
            ".waits circle{fill:var(--bg);stroke:var(--violet);stroke-width:2}"
            ".waits .in{fill:var(--violet);stroke:none}"
            ".blocked path{stroke:var(--red);stroke-width:3}"
            ".call{fill:var(--tool)}.no{fill:var(--bg);stroke:var(--wire);stroke-dasharray:2 2}"
            ".button{fill:var(--card);stroke:var(--line)}.primary{fill:var(--accent)}text.on{fill:var(--on-accent)}"
            ".pointer{fill:var(--ink);stroke:var(--bg);stroke-width:1.25;stroke-linejoin:round}"
            ".sweep{stroke:var(--accent);stroke-width:1.5;opacity:0}.logo{fill:none;stroke:var(--accent);stroke-width:2.4;"
            "stroke-linecap:round}"
            f".t{{animation:{CYCLE:g}s linear infinite both}}.gone{{opacity:0}}{''.join(self.rules.values())}"
            "@media(prefers-reduced-motion:reduce){*{animation:none!important}}"
        )


def words(x: float, y: float, text: str, kind: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text, quote=False)}</text>'


def gate(state: str, x: float, y: float, scale: float = 1.0) -> str:
    """Return the sign of a gate."""
    shapes = "".join(
        f"<{name} {' '.join(f'{key}={value!r}' for key, value in attributes.items())}/>"
        for name, attributes in SIGNS[state].shapes
    )
    size = f" scale({scale:g})" if scale != 1 else ""
    return f'<g class="g {state}" transform="translate({x:g} {y:g}){size}">{shapes}</g>'


def draw_call(story: Story, line: CallLine, y: float, at: float) -> float:
    """Draw a call, and return when its line is complete."""
    story.appear(at - 0.3, words(28, y - 3, line.tool, "m b"), words(28, y + 14, line.arguments, "m f"))
    states = {gate.hook: gate for gate in line.gates}
    x, cut = START, False
    places = sorted([*((place, name) for name, place in COLUMNS.items()), (CALL, "call"), (END, "end")])
    for place, name in places:
        edge = 0.0 if name == "end" else 7.0
        at = story.wire(x + (7.0 if x != START else 0.0), place - edge, y, at, dotted="dots" if cut else "")
        x = place
        if name == "end":
            continue
        if name == "call":
            kind = "no" if cut else "call"
            story.appear(at, f'<rect class="{kind}" x="{place - 6:g}" y="{y - 5:g}" width="12" height="10" rx="2"/>')
            continue
        found = states[name]
        if found.state == "asked":
            at = ask(story, line, found, place, y, at)
        else:
            story.appear(at, gate(found.state, place, y, 1.2))
        cut = cut or found.state == "blocked"
        if found.spoke and found.state != "asked":
            tone = SIGNS[found.state].tone
            story.appear(
                at + 0.4, words(RIGHT, y - 3, found.word, f"b {tone}"), words(RIGHT, y + 14, found.reason, "s")
            )
    return at


def ask(story: Story, line: CallLine, found: GateCall, x: float, y: float, at: float) -> float:
    """Draw a gate that waits until a person has approved the call."""
    seen, pressed = at + 0.6, at + 3.0
    story.appear(at, gate("waits", x, y, 1.2), until=pressed + 0.2)
    buttons = "".join(
        f'<rect class="button {kind}" x="{left:g}" y="{y + 3:g}" width="{width}" height="22" rx="6"/>'
        + words(left + width / 2, y + 18, text, f"c s {'on' if kind else ''}")
        for left, width, text, kind in ((RIGHT, 74, "Approve", "primary"), (RIGHT + 82, 56, "Deny", ""))
    )
    story.appear(seen, words(RIGHT, y - 7, line.question, "b violet"), buttons, until=pressed)
    pointer = '<path class="pointer" d="M0 0V15L4 11.500 6.500 17 9 16 6.500 10.500H11.500Z"/>'
    story.appear(
        seen + 0.8,
        f'<g transform="translate({RIGHT + 48:g} {y + 14:g})"><g class="t moves">{pointer}</g></g>',
        until=pressed,
    )
    first, last = (seen + 0.8) / CYCLE * 100, (pressed - 0.4) / CYCLE * 100
    story.rules["moves"] = (
        f"@keyframes moves{{0%,{first:.2f}%{{transform:translate(120px,60px)}}{last:.2f}%,100%{{transform:none}}}}"
        ".moves{animation-name:moves;animation-timing-function:ease-in-out}"
    )
    story.appear(pressed + 0.2, gate("asked", x, y, 1.2))
    said = f"approved by {line.decided_by}"
    story.appear(pressed + 0.4, words(RIGHT, y - 3, said, "b violet"), words(RIGHT, y + 14, found.reason, "s"))
    return pressed + 0.4


def draw_runs(story: Story, tried: Tried, y: float, at: float) -> None:
    """Draw a small line for each recorded run, and what the rule changes about it while it passes over them."""
    per_row, width, height = 6, 138.0, 26.0
    swept, seconds = at + 0.8, 3.2
    for number, (gates, is_blocked) in enumerate(tried.runs):
        column, row = number % per_row, number // per_row
        left, middle = 28 + column * width, y + row * height
        xs = [left + 14 + 20 * position for position in range(3)]
        call_x, last_x, end = left + 76, left + 98, left + 112
        before = [found for found in gates if found.point == "before_tool"]
        after = [found for found in gates if found.point == "after_tool"]
        cut = xs[-1] - 4
        passes = swept + seconds * (cut - 28) / (WIDTH - 56)
        head = f'<path class="wire" d="M{left:g} {middle:g}H{cut:g}"/>'
        signs = "".join(gate(found.state, x, middle, 0.8) for found, x in zip(before[:2], xs, strict=False))
        story.always(head, signs)
        tail = (
            f'<path class="wire" d="M{cut:g} {middle:g}H{end:g}"/>'
            f'<rect class="call" x="{call_x - 5:g}" y="{middle - 4:g}" width="10" height="8" rx="2"/>'
            + gate(before[2].state, xs[2], middle, 0.8)
            + gate(after[0].state, last_x, middle, 0.8)
        )
        if not is_blocked:
            story.always(tail)
            continue
        story.appear(0.0, tail, until=passes)
        story.appear(
            passes,
            f'<path class="wire dots" d="M{xs[2] + 6:g} {middle:g}H{end:g}"/>'
            f'<rect class="no" x="{call_x - 5:g}" y="{middle - 4:g}" width="10" height="8" rx="2"/>'
            + f'<path class="wire" d="M{cut:g} {middle:g}H{xs[2]:g}"/>'
            + gate("blocked", xs[2], middle, 0.95),
        )
    first, last = swept / CYCLE * 100, (swept + seconds) / CYCLE * 100
    story.rules["sweeps"] = (
        f"@keyframes sweeps{{0%,{first:.2f}%{{opacity:0;transform:none}}"
        f"{first + 0.5:.2f}%{{opacity:1}}{last - 0.5:.2f}%{{opacity:1}}"
        f"{last:.2f}%,100%{{opacity:0;transform:translate({WIDTH - 56}px)}}}}.sweeps{{animation-name:sweeps}}"
    )
    bottom = y + height * (len(tried.runs) // per_row) - 8
    story.always(f'<path class="sweep t sweeps" d="M28 {y - 16:g}V{bottom:g}"/>')
    story.appear(
        swept + seconds + 0.3, words(28, bottom + 22, tried.headline, "b red"), words(28, bottom + 41, tried.sure, "s")
    )


def hook_line() -> str:
    """Return the picture."""
    story = Story()
    with tempfile.TemporaryDirectory() as folder:
        calls = [
            call("read_invoice", number=221),
            call("send_mail", to="rival.example"),
            call("pay", invoice=221, euros=1480),
        ]
        lines = record(Path(folder, "today"), *calls)
        tried = try_stricter_rule(Path(folder))
    story.always(
        f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="14"/>',
        '<g class="logo" transform="translate(26 19) scale(.9)"><path d="M12 3v11a4.5 4.5 0 1 1-9 0"/>'
        '<path d="M3 14l2.600-2.600M3 14"/><circle cx="12" cy="3.200" r="1.400"/>'
        '<path d="M17 7h4M17 12h4M17 17h4"/></g>',
        words(54, 35, "A call is a line. Hooks are gates on it.", "b h"),
        *(words(x, 76, name, "f c") for name, x in COLUMNS.items()),
        words(CALL, 76, "the tool", "f c b"),
    )
    at = 0.6
    for number, line in enumerate(lines):
        at = draw_call(story, line, 112 + 50 * number, at) + 1.0
    rule = "small_sums_only: block sums above 500 euros"
    story.always(
        f'<path class="rule" d="M28 254H{WIDTH - 28}"/>',
        words(28, 284, "A stricter rule, tried on yesterday's runs", "b h"),
    )
    story.appear(at, words(WIDTH - 28, 284, rule, "m f e"))
    draw_runs(story, tried, 322, at)
    return story.svg("A hook blocks a mail, a person approves a payment, and a stricter rule is tried on recorded runs")
