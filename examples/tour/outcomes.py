"""Print what happened in the run of `make run`, in five lines: python outcomes.py RUN.tape"""

import sys
from collections.abc import Iterator

import rules
import stricter
import visitor
from rich.console import Console
from rich.text import Text

from hookline.explain import SIGNS, RunView, ToolCallView, explain
from hookline.hooks import Hook
from hookline.records import read_runs
from hookline.tape import Replay, replay

STYLES = {"red": "red", "amber": "yellow", "violet": "magenta", "grey": ""}


def outcomes(run: RunView, under_stricter: Replay) -> Iterator[tuple[str, str, str]]:
    """Yield the sign, the word and the sentence of each outcome."""
    calls = [item for step in run.steps for item in step.items if isinstance(item, ToolCallView)]
    for call in calls:
        for decision in (each for moment in call.moments for each in moment.decisions):
            why = f"({decision.hook}: {decision.reason})"
            if decision.verb == "replace":
                yield "changed", "changed", f'{call.tool}: the model got "{call.result}" {why}'
            elif decision.verb == "block":
                yield "blocked", "blocked", f"{call.tool} did not run {why}"
            elif decision.verb == "ask":
                sign = "denied" if call.decision == "denied" else "asked"
                yield sign, "asked", f"{call.tool} was {call.decision} by {call.decided_by} {why}"
    yield "passed", "finished", run.reply
    for each in under_stricter.differences:
        if each.replayed is not None:
            yield "blocked", "stricter", f"{stricter.__name__}.py would have blocked mail_note ({each.replayed.reason})"


if __name__ == "__main__":
    tape, console = sys.argv[1], Console(highlight=False)
    hooks: list[Hook] = [rules.keep_notes, rules.ask_first, rules.hide_codes, visitor.next_task, visitor.only_tools]
    shown = outcomes(explain(next(read_runs([tape]))), replay(tape, [*hooks, stricter.no_mail]))
    for state, word, text in shown:
        sign = SIGNS[state]
        glyph = sign.glyph if console.encoding.startswith("utf") else sign.ascii
        console.print(Text.assemble(f"  {glyph} {word:<9}", style=STYLES[sign.tone]) + Text(f" {text}"), soft_wrap=True)
