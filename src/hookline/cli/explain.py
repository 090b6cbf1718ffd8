"""``hookline explain``: what happened in a recorded run, hook by hook."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .._base.text import did_you_mean, duration_text
from ..config.errors import ConfigError
from ..config.sources import Configuration
from ..explain.view import (
    Change,
    DecisionView,
    EventView,
    Item,
    ModelCall,
    MomentView,
    NestedRun,
    RunView,
    StepView,
    ToolCallView,
    call_gates,
    is_open,
    is_refused,
    nested_runs,
    ran,
    unanswered_signs,
)
from ..explain.words import ONLY, QUIET_POINTS, SIGNS, VERBS, gate_of
from ..records.rules import SHORT_DIGEST
from .errors import COMPLETED, print_note
from .help import Command
from .hook_line import hook_line, is_ascii, sign, style_of
from .names import RunName, check_name, find_recorded, run_list
from .options import AsJson, with_settings
from .output import console, short_path, time_text, write_json
from .text import counted, printable, short, size_text

if TYPE_CHECKING:
    from ..explain.text_diff import Part
    from ..records.reading import RecordedRun
    from ..stores.runs import RunStore

EPILOG = """
Examples:
  hookline explain last
  hookline explain 3f2a91 --only blocked
  hookline explain last --at 42
  hookline explain last --html run.html
  hookline explain records/monday.moments --hook no_sudo

RUN is the id of a run or its beginning, last, a record or tape, or a folder of them. Points show their hooks in
firing order, with the sign of each: ○ passed, ◆ changed, ● asked, ◌ no answer, ⊘ denied, ┃ blocked, ✗ failed, · not
called.
"""

_MANY = 400
"""In a run with more moments, points at which no hook intervened are left out."""
_LINES = 6
"""Number of lines of a text that are shown without ``--full``."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain", cls=Command, epilog=EPILOG)(with_settings("records", "runs", "database", "debug")(explain))


def explain(
    config: Configuration,
    run: RunName,
    at: Annotated[int | None, typer.Option(metavar="N", min=0, help="Show only the step of this moment.")] = None,
    only: Annotated[str | None, typer.Option(metavar="WHAT", help=f"Only what hooks did: {', '.join(ONLY)}.")] = None,
    hook: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only where this hook intervened, or this person denied a call.")
    ] = None,
    tool: Annotated[str | None, typer.Option(metavar="NAME", help="Only calls of this tool.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Show whole texts, and all points.")] = False,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a web page instead.")] = None,
    json: AsJson = False,
) -> int:
    """Show each step of a recorded run, and what each hook decided.

    Also shown: what each hook changed, why the run stopped, tokens, cost and time.
    """
    view = load_view(run, config)
    if html is not None:
        from ..explain.page import explain_html

        write_page(html, explain_html(view))
        return COMPLETED
    if json:
        write_json(view)
        return COMPLETED
    printer = _Printer(view, filters=_Filters(view, at, only, hook, tool), full=full)
    for line in printer.parts():
        printer.write(line)
    return COMPLETED


def load_view(name: str, config: Configuration) -> RunView:
    """Return the view of a run, and print what was skipped while reading it.

    A run without a record is shown from what the list of runs has about it.
    """
    from ..explain.find import is_path
    from ..explain.from_facts import stored_view
    from ..explain.view import explain as view_of
    from ..records.format import RecordError

    check_name(name)
    with run_list(config) as store:
        ids = _listed(name, store, config)
        if name == "last" and ids:
            (name,) = ids  # also if a later run has a record: it was deleted, or is in no list or another one
        try:
            found = find_recorded(name, config)
        except RecordError as error:
            if not ids and (store is None or name == "last" or is_path(name)):
                raise
            if not ids:
                raise ConfigError(f"{error}; the list of runs does not have it either") from None
            found = None
        if found is not None and ids and _is_ambiguous(name, found.run, ids, config):
            raise ConfigError(f"more than one run begins with {name!r}: {', '.join(sorted({found.run.id, *ids}))}")
        if store is not None and found is None:
            view = stored_view(store, store.find(name))
            for note in view.notes:
                print_note(note)
            return view
    assert found is not None  # the run is not in the list
    view = view_of(found.run)
    view.notes += found.notes
    return view


def _listed(name: str, store: RunStore | None, config: Configuration) -> list[str]:
    """Return the ids in the list of runs that a name stands for. A list that cannot be read does not hide records.

    Raises:
        ConfigError: the last run of a list without runs is meant.
    """
    from ..explain.find import is_path
    from ..stores.errors import StoreError

    if is_path(name) or (name == "last" and "records" in config.given):
        return []
    found: list[str] = []
    try:
        if store is not None:
            found = store.ids_of(name)
    except StoreError as error:
        print_note(f"the list of runs cannot be read: {error}")
        return []
    is_meant = store is not None or ("runs" in config.given and config.settings.runs is not None)
    if name == "last" and is_meant and not found:
        where = short_path(config.settings.runs or "")
        raise ConfigError(f"there are no runs in the list {where}: hookline record ls lists those that are recorded")
    return found


def _is_ambiguous(name: str, recorded: RecordedRun, ids: Sequence[str], config: Configuration) -> bool:
    """Return whether a name stands for a recorded run and for another one in the list."""
    return ids != [recorded.id] and recorded.id != name and "records" not in config.given


def write_page(file: str, page: str) -> None:
    """Write a page, which may contain secrets of the run, for its owner only."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as out:
            out.write(page)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error
    sys.stderr.write(f"written: {printable(file)} ({size_text(len(page.encode()))})\n")


class _Filters:
    """Which moments to show."""

    def __init__(self, view: RunView, at: int | None, only: str | None, hook: str | None, tool: str | None) -> None:
        if only is not None and only not in ONLY:
            raise ConfigError(f"--only: expected {', '.join(ONLY)}; got {only!r}.{did_you_mean(only, ONLY)}")
        moments = list(view.moments())
        if at is not None and all(moment.n != at for moment in moments):
            raise ConfigError(f"--at: the run has no moment {at}; it has {counted(len(moments), 'moment')}")
        hooks = {each.name for chain in view.chains for each in chain}
        hooks |= {decision.hook for moment in moments for decision in moment.decisions}
        calls = [item for _, step, _ in view.all_steps() for item in step.items if isinstance(item, ToolCallView)]
        hooks |= {call.decided_by for call in calls if call.decision == "denied"}  # a person may be named as well
        tools = {call.tool for call in calls}
        if hook is not None and hook not in hooks:
            raise ConfigError(f"--hook: the run has no hook {hook!r}.{did_you_mean(hook, hooks)}")
        if tool is not None and tool not in tools:
            raise ConfigError(f"--tool: the run has no call of {tool!r}.{did_you_mean(tool, tools)}")
        self.at, self.only, self.hook, self.tool = at, only, hook, tool

    @property
    def active(self) -> bool:
        """Whether anything is left out."""
        return any(each is not None for each in (self.at, self.only, self.hook, self.tool))

    def step(self, step: StepView) -> bool:
        """Whether to show a step."""
        return self.at is None or any(moment.n == self.at for moment in step.moments())

    def item(self, item: Item) -> bool:
        """Whether to show a part of a step."""
        if isinstance(item, NestedRun):
            return not self.active
        if self.tool is not None and not (isinstance(item, ToolCallView) and item.tool == self.tool):
            return False
        if self.only is None and self.hook is None:
            return True
        refused = is_refused(item, self.hook)
        if self.only == "blocked" or (self.only is None and refused):
            return refused
        wanted = ONLY[self.only] if self.only is not None else VERBS
        for moment in item.moments:
            verbs = [d.verb for d in moment.decisions if self.hook is None or d.hook == self.hook]
            if any(verb in wanted and verb != "cont" for verb in verbs):
                return True
            if moment.verdict == "invalid" and "invalid" in wanted and self.hook is None:
                return True
        return False


class _Printer:
    """Turns the view of a run into lines for a terminal."""

    def __init__(self, view: RunView, *, filters: _Filters | None = None, full: bool = False) -> None:
        self.view = view
        self._asked = unanswered_signs(view)
        self.filters = filters
        self.full = full or (filters is not None and filters.at is not None)
        self.all_points = self.full or view.events <= _MANY
        self.out = console()
        self.width = self.out.width
        self.ascii = is_ascii(sys.stdout)
        self.coloured = self.out.color_system is not None and not self.out.no_color

    def parts(self) -> Iterator[Text]:
        """Yield the lines."""
        yield from self.header()
        shown = False
        for line in self.run(self.view, 0):
            shown = True
            yield line
        if not shown and self.filters is not None and self.filters.active:
            yield Text("\nNothing in this run matches.", style="dim")

    def write(self, line: Text) -> None:
        """Print a line as soon as it is made. It is wrapped already; only colours need Rich, which is slow."""
        if self.coloured:
            self.out.print(line, soft_wrap=True)
        else:
            sys.stdout.write("".join(f"{each.rstrip()}\n" for each in line.plain.split("\n")))

    # The header

    def header(self) -> Iterator[Text]:
        view = self.view
        status = _coloured(view.status, bold=True)
        started = f"  {time_text(view.time)}" if view.time else ""
        yield Text.assemble(status, " ", (printable(view.id, keep=""), "dim"), (started, "dim"))
        yield self.indented(0, Text(short(view.task, 4 * self.width), style="bold"))
        cached = f" ({view.cached_tokens:,} cached)" if view.cached_tokens else ""
        used = view.input_tokens or view.output_tokens
        facts = (
            view.agent and f"agent {view.agent}",
            view.model and f"model {view.model}",
            counted(view.step_count, "step"),
            counted(view.tool_calls, "tool call"),
            str(view.subagents),
            duration_text(view.elapsed) if view.elapsed else "",
            f"{view.input_tokens:,} in{cached}, {view.output_tokens:,} out" if used else "",
            "cost unknown" if view.cost is None else f"${view.cost:.4f}",
            counted(view.events, "moment"),
            view.rules and f"rules {view.rules[:SHORT_DIGEST]}",
        )
        yield self.indented(0, Text(printable(" · ".join(filter(None, facts)), keep=""), style="dim"))
        if view.why:
            yield self.indented(0, Text(printable(view.why)), label="why it stopped  ")
        if view.reply:
            yield self.indented(0, Text(self.excerpt(view.reply)), label="reply  ")
        interventions: dict[str, dict[str, int]] = {}
        for moment in view.moments():
            for decision in moment.decisions:
                if decision.verb != "cont":
                    counts = interventions.setdefault(decision.hook, {})
                    counts[decision.verb] = counts.get(decision.verb, 0) + 1
        if interventions:
            line = Text()
            for position, (hook, counts) in enumerate(interventions.items()):
                line.append(" · " if position else "", style="dim")
                line.append(printable(hook, keep=""), style="")
                for verb, count in counts.items():
                    line.append(f" {count} ")
                    self.append_sign(line, gate_of(verb))
                    line.append(f" {word_of(verb)[0]}", style=style_of(verb))
            yield self.indented(0, line, label="hooks  ")
        if view.until:
            yield from self.timeline()

    def timeline(self) -> Iterator[Text]:
        """Yield a bar of the time that model and tools took, and the interventions of hooks above it."""
        total, width = max(self.view.elapsed, self.view.until, 1e-9), max(20, min(self.width, 120) - 24)
        states, order = dict[int, str](), tuple(SIGNS)
        bar: list[tuple[str, str]] = [("." if self.ascii else "·", "dim")] * width

        blocks = ("#", "=") if self.ascii else ("█", "▒")

        def column(at: float) -> int:
            return max(0, min(width - 1, int(at / total * width)))

        for _, step, depth in self.view.all_steps():
            for item in step.items:
                if isinstance(item, NestedRun):
                    continue
                for moment in item.moments:
                    for verb in moment.verbs:
                        place, state = column(moment.at), self.state_of(verb, moment)
                        if order.index(state) >= order.index(states.get(place, "passed")):
                            states[place] = state
                if depth or isinstance(item, EventView) or not item.duration:
                    continue
                until = item.moments[-1].at if item.moments else item.at + item.duration
                if isinstance(item, ToolCallView) and item.began is not None:
                    until = item.began + item.duration
                block = blocks[isinstance(item, ModelCall)]
                for position in range(column(until - item.duration), column(until) + 1):
                    bar[position] = block, ""
        yield Text()
        if states:
            line = Text()
            for place in range(width):
                if place in states:
                    self.append_sign(line, states[place])
                else:
                    line.append("-" if self.ascii else "─", style="dim")
            yield line
        yield Text.assemble(*bar, (f"  {duration_text(total)}  {blocks[1]} model {blocks[0]} tools", "dim"))

    # Runs and steps

    def run(self, run: RunView, depth: int) -> Iterator[Text]:
        for step in run.steps:
            if self.filters is None or self.filters.step(step):
                yield from self.step(run, step, depth)
            if self.filters is not None and self.filters.active:
                for nested in nested_runs(step):
                    yield from self.run(nested, depth + 1)

    def step(self, run: RunView, step: StepView, depth: int) -> Iterator[Text]:
        items = [item for item in step.items if self.filters is None or self.filters.item(item)]
        parts = [line for item in items for line in self.item(item, depth)]
        if not parts:
            return
        models = [item for item in step.items if isinstance(item, ModelCall)]
        tokens = sum(call.input_tokens + call.output_tokens for call in models)
        cost = sum(call.cost or 0.0 for call in models)
        facts = [counted(tokens, "token")] * bool(tokens) + [f"${cost:.4f}"] * bool(cost)
        took = step.until - step.at
        facts += [duration_text(took)] * (took > 0) + [f"at +{duration_text(step.at)}"]
        title = "Start" if step.index < 0 else f"Step {step.index + 1}"
        if depth and run.agent:
            title += f" of {printable(run.agent, keep='')}"
        yield Text()
        yield self.indented(depth, Text.assemble((title, "bold"), (f"  {' · '.join(facts)}", "dim")))
        yield from parts

    def item(self, item: Item, depth: int) -> Iterator[Text]:
        if isinstance(item, ModelCall):
            yield from self.model_call(item, depth)
        elif isinstance(item, ToolCallView):
            yield from self.tool_call(item, depth)
        elif isinstance(item, NestedRun):
            yield from self.nested(item.run, depth + 1)
        else:
            yield from self.event(item, depth)

    def event(self, item: EventView, depth: int) -> Iterator[Text]:
        point = item.moments[0].point
        lines = [line for moment in item.moments for line in self.moment(moment, depth + 1)]
        text = "" if point in QUIET_POINTS else item.text
        if text:
            yield self.indented(
                depth + 1, Text(self.excerpt(text), style="red" if item.bad else ""), label=f"{point}  "
            )
        yield from lines

    def model_call(self, call: ModelCall, depth: int) -> Iterator[Text]:
        who = "model" if call.source == "model" else f"answered by {call.source}"
        if call.purpose != "step":
            who += f" for {call.purpose}"
        facts = [printable(call.model, keep="")] * bool(call.model)
        facts += [f"attempt {call.attempt}"] * (call.attempt > 1)
        sent = call.kept + len(call.messages)
        new = f" ({len(call.messages)} new)" if call.kept and call.messages else ""
        facts += [f"{counted(sent, 'message')}{new}"] * bool(sent)
        facts += [f"{call.input_tokens:,} in, {call.output_tokens:,} out"] * bool(
            call.input_tokens or call.output_tokens
        )
        facts += [f"${call.cost:.4f}"] if call.cost else []
        facts += [duration_text(call.duration)] * bool(call.duration)
        yield self.indented(
            depth + 1, Text.assemble((printable(who, keep=""), "bold"), (f"  {' · '.join(facts)}", "dim"))
        )
        if self.full:
            for message in call.messages:
                text = "(shown above)" if message.known else printable(message.text)
                calls = f" calls {', '.join(message.calls)}" if message.calls else ""
                yield self.indented(depth + 2, Text(f"{text}{printable(calls, keep='')}"), label=f"{message.role}: ")
        yield from self.moments(call.moments, ("before_llm",), depth + 2)
        if call.error:
            yield self.indented(depth + 2, Text(printable(call.error), style="red"))
        if call.text:
            yield self.indented(depth + 2, Text(self.excerpt(call.text)))
        yield from self.moments(call.moments, ("on_token", "after_llm", "on_error"), depth + 2)

    def tool_call(self, call: ToolCallView, depth: int) -> Iterator[Text]:
        outcome = _coloured(call.outcome or "no result recorded")
        facts = [f"attempt {call.attempts}"] * (call.attempts > 1)
        facts += [duration_text(call.duration)] * bool(call.duration) + [call.id]
        gates = call_gates(call, self.view.chains, is_open=is_open(self.view))
        became = "error" if call.outcome == "error" else "ok" if ran(call) else "no"
        line = hook_line(gates, became, ascii=self.ascii)
        head = Text.assemble(*line, "  ", (printable(call.tool, keep=""), "bold"), " ", outcome)
        head.append(f"  {printable(' · '.join(facts), keep='')}", style="dim")
        for label in call.labels:
            head.append(f"  label: {printable(label, keep='')}", style="magenta")
        yield self.indented(depth + 1, head)
        for name, value in call.arguments:
            yield self.indented(depth + 2, Text(self.excerpt(value)), label=f"{printable(name, keep='')}: ")
        if call.raw:
            yield self.indented(depth + 2, Text(short(call.raw, 2 * self.width)), label="not a JSON object: ")
        yield from self.moments(call.moments, ("before_tool",), depth + 2)
        if call.questions or call.decision:
            decision = _coloured(call.decision or "no answer")
            by = f" by {printable(call.decided_by, keep='')}" if call.decided_by else ""
            question = short(" ".join(call.questions), 2 * self.width)
            yield self.indented(depth + 2, Text.assemble(decision, by, (f"  {question}", "dim")))
        yield from self.moments(call.moments, ("approval_requested", "approval_decided", "on_progress"), depth + 2)
        if self.filters is None or not self.filters.active:
            for run in call.runs:
                yield from self.nested(run, depth + 2)
        blocks = [d.value for moment in call.moments for d in moment.decisions if d.verb == "block"]
        if call.result and call.result not in blocks:
            style = "" if call.outcome in ("ok", "answered") else "red"
            yield self.indented(depth + 2, Text(self.excerpt(call.result), style=style), label="→ ")
        yield from self.moments(call.moments, ("after_tool", "on_error"), depth + 2)

    def nested(self, run: RunView, depth: int) -> Iterator[Text]:
        status = _coloured(run.status)
        line = Text.assemble(("↳ ", "dim"), (printable(run.agent or "a run", keep=""), "bold"), " ", status)
        line.append(f"  {short(run.task, self.width)}", style="dim")
        yield self.indented(depth, line)
        yield from self.run(run, depth + 1)

    # Points

    def moments(self, moments: Iterable[MomentView], points: Sequence[str], depth: int) -> Iterator[Text]:
        for moment in moments:
            if moment.point in points:
                yield from self.moment(moment, depth)

    def moment(self, moment: MomentView, depth: int) -> Iterator[Text]:
        """Yield a line with the hooks in firing order, and a few for each decision."""
        outcomes = self.view.hooks_at(moment)
        if not outcomes and not moment.notes:
            return
        if not self.all_points and not moment.verbs:
            return
        chosen = self.filters is not None and moment.n == self.filters.at
        label = Text.assemble((f"#{moment.n}", "reverse" if chosen else "dim"), (f" {moment.point}  ", "dim"))
        line = Text()
        others = sum(outcome.state == "not selected" for outcome in outcomes)
        called = [outcome for outcome in outcomes if outcome.state != "not selected"]
        for position, outcome in enumerate(called):
            skipped, decision = outcome.state == "skipped", outcome.decision
            state = "skipped" if skipped else "passed" if decision is None else self.state_of(decision.verb, moment)
            wire = (" . " if skipped else " - ") if self.ascii else " ┄ " if skipped else " ─ "
            line.append(wire if position else "", style="dim")
            self.append_sign(line, state)
            spoke = decision is not None and decision.verb != "cont"
            style = f"bold {style_of(decision.verb)}" if spoke and decision is not None else "dim" if skipped else ""
            line.append(f" {printable(outcome.name, keep='')}", style=style)
        if others:
            line.append(f"{'  ' if called else ''}({counted(others, 'hook')} for other tools)", style="dim")
        if moment.took:
            line.append(f"  {duration_text(moment.took)}", style="dim")
        yield self.indented(depth, line, label=label)
        for decision in moment.decisions:
            yield from self.decision(decision, depth + 1)
        for change in moment.checked:
            yield self.indented(depth + 1, Text("validation", style="dim"), label="changed by ")
            yield self.change(change, depth + 2)
        if moment.verdict == "invalid":
            text = "the arguments do not match the tool's schema, so no guard was called"
            yield self.indented(depth + 1, Text(text, style="red"))
        for note in moment.notes:
            yield self.indented(depth + 1, Text(printable(note, keep=""), style="dim"))

    def decision(self, decision: DecisionView, depth: int) -> Iterator[Text]:
        word = (word_of(decision.verb)[0], f"bold {style_of(decision.verb)}")
        line = Text.assemble(word, " ", (printable(decision.hook, keep=""), "bold"))
        line.append(f" ({decision.phase})", style="dim")
        if decision.error:
            line.append(f"  {short(decision.error, 2 * self.width)}", style="red")
        elif decision.reason:
            line.append(f"  {short(decision.reason, 2 * self.width)}")
        yield self.indented(depth, line)
        if decision.value:
            yield self.indented(depth + 1, Text(self.excerpt(decision.value)))
        for change in decision.changes:
            yield self.change(change, depth + 1)
        for change in decision.state:
            yield self.change(Change(f"state {change.field}", change.parts), depth + 1)

    def state_of(self, verb: str, moment: MomentView) -> str:
        """Return how the hook line draws what a hook did at a moment."""
        return self._asked.get(moment.n, "asked") if verb == "ask" else gate_of(verb)

    def append_sign(self, line: Text, state: str) -> None:
        line.append(*sign(state, ascii=self.ascii))

    def change(self, change: Change, depth: int) -> Text:
        return self.indented(depth, diff_text(change.parts, coloured=self.coloured), label=f"{change.field}: ")

    def excerpt(self, text: str) -> str:
        """Return the first lines of a text, or all of it."""
        if self.full:
            return printable(text)
        lines = text.strip("\n").splitlines()
        shown = "\n".join(lines[:_LINES])[: 2 * self.width]
        return printable(shown if len(shown) >= len(text.strip("\n")) else f"{shown.rstrip()} …")

    def indented(self, depth: int, text: Text, *, label: str | Text = "") -> Text:
        """Return a text that is wrapped within an indentation, after a label."""
        if isinstance(label, str):
            label = Text(printable(label, keep=""), style="dim")
        first = Text("  " * depth) + label
        rest = Text(" " * min(len(first), self.width // 2))
        room = max(20, self.width - len(rest))
        if len(text) <= room and text.plain.isascii() and "\n" not in text.plain:
            return first + text  # wrapping is slow, and a long run has a hundred thousand lines
        lines = text.wrap(self.out, room, overflow="fold")
        if not lines:
            return first
        return Text("\n").join([first + lines[0], *(rest + line for line in lines[1:])])


def diff_text(parts: Iterable[Part], *, coloured: bool) -> Text:
    """Return a difference: removed text in red and added text in green, or in ``[-…-]`` and ``{+…+}``."""
    shown = Text()
    for op, text in parts:
        safe = printable(text)
        if op == "=":
            shown.append(safe)
        elif op == "~":
            shown.append(f" … {safe} … ", style="dim italic")
        elif coloured:
            shown.append(safe, style="green" if op == "+" else "red strike")
        else:
            shown.append(f"{{+{safe}+}}" if op == "+" else f"[-{safe}-]")
    return shown


def word_of(verb: str) -> tuple[str, str]:
    """Return a verb as a word for people, and its colour."""
    return VERBS.get(verb, (printable(verb, keep=""), "grey"))


def _coloured(word: str, *, bold: bool = False) -> Text:
    return Text(printable(word, keep=""), style=f"{'bold ' if bold else ''}{style_of(word)}")
