"""Measure what helps a small model: grounding, and the hooks, each on alone, each off alone, all together.

python bench/slm/run.py --tasks bench/slm/tune.py --setups "all, grounded" --stories  # while changing something
python bench/slm/run.py --only 2 --setups all                                         # two tasks of each kind

This prints the results and writes nothing: ``make bench SECTIONS=small_models`` does.

Runs on the embedded model, or on ``--model``. A task is solved if the needed calls were made, in order and with the
right arguments, and the final text has the needed value; a task that needs no call, if none was made.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hookline import Agent, AgentResult, Limits, get_model
from hookline.hooks import EchoedPayloadHook, GroundedReplyHook, LoopDetectorHook, SchemaRetryHook, default_slm_hooks
from hookline.models import LocalModel
from hookline.payloads import ToolCall

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from slm.report import Rows, summaries, table  # noqa: E402
from slm.tasks import KINDS, TASKS, Task  # noqa: E402

INSTRUCTIONS = "You are a helpful assistant. Use the tools when they help, and answer briefly."
MAX_STEPS = 6

BUNDLE = {
    "loop detector": LoopDetectorHook,
    "echoed payload": EchoedPayloadHook,
    "grounded reply": GroundedReplyHook,
    "schema retry": SchemaRetryHook,
}


def bundled(*kinds: type) -> list[Any]:
    """Return the hooks of these classes as configured in the bundle."""
    return [hook for hook in default_slm_hooks() if type(hook) in kinds]


GROUNDED = ", grounded"
"""The end of the name of a setup in which the local model is grounded (``LocalModel(ground=True)``)."""

SETUPS: dict[str, Callable[[], list[Any]]] = {
    "no hooks": list,
    **{f"only {name}": partial(bundled, kind) for name, kind in BUNDLE.items()},
    **{
        f"all but {name}": partial(bundled, *(other for other in BUNDLE.values() if other is not kind))
        for name, kind in BUNDLE.items()
    },
    "all": default_slm_hooks,
    "no hooks, grounded": list,
    "all, grounded": default_slm_hooks,
}
REPORTED = ("no hooks", "all", "all, grounded")
"""The setups of the section ``small_models``, which runs them on the held-out tasks."""


def models(name: str) -> Callable[[str], Any]:
    """Return a function that returns the model for a setup."""
    if name != "local":
        given = get_model(name)
        return lambda setup: given
    plain, grounded = LocalModel(ground=False), LocalModel(ground=True)
    return lambda setup: grounded if setup.endswith(GROUNDED) else plain


def measure(task: Task, hooks: list[Any], model: Any) -> dict[str, Any]:
    """Run one task and return its result."""
    agent = Agent("small", "", INSTRUCTIONS, llm=model, tools=task.tools(), hooks=hooks, limits=Limits(steps=MAX_STEPS))
    began = time.monotonic()
    result = agent.run(task.text)
    made = [call for message in result.messages for call in message.tool_calls]
    ran = [call for call in made if not any(m.call_id == call.id and m.is_error for m in result.messages)]
    seen = [(call.name, json.dumps(dict(call.arguments), sort_keys=True, default=str)) for call in made]
    return {
        "kind": task.kind,
        "solved": has_calls(task, made, ran) and has_value(task.value, result.reply) and result.status != "stopped",
        "repeats": len(seen) - len(set(seen)),
        "unfinished": result.status == "stopped" or not result.reply,
        "echoes": is_payload(result.reply),
        "schema errors": sum(error.type == "InvalidCall" for error in result.errors),
        "turns": len(result.steps),
        "tokens": result.usage.total_tokens,
        "seconds": time.monotonic() - began,
        "story": story(result),
    }


def story(result: AgentResult) -> str:
    """Summarise the run in one line."""
    parts = []
    for message in result.messages[1:]:
        calls = [
            f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})" for call in message.tool_calls
        ]
        mark = {"tool": "= ", "user": "> "}.get(message.role, "")
        parts += calls or [mark + message.content]
    return f"[{result.status}] " + " | ".join(part[:110] for part in parts)


def has_calls(task: Task, made: list[ToolCall], ran: list[ToolCall]) -> bool:
    """Whether the required calls succeeded in order, or no call was made where none is required."""
    if not task.calls:
        return not made
    left = iter(ran)
    return all(any(call.name == name and fits(call.arguments, wanted) for call in left) for name, wanted in task.calls)


def fits(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the arguments are the expected ones; text is compared without case."""
    return all(name in given and plain(given[name]) == plain(value) for name, value in wanted.items())


def plain(value: Any) -> Any:
    """Normalise a value for comparison."""
    return value.strip().rstrip(".").casefold() if isinstance(value, str) else value


def has_value(value: str, text: str) -> bool:
    """Whether a text contains a value as a whole word or number; for an empty value, any text."""
    if not value:
        return bool(text.strip())
    return re.search(rf"(?<![\w.]){re.escape(value)}(?:\.0+)?(?![\w]|\.\d)", text, re.IGNORECASE) is not None


def is_payload(text: str) -> bool:
    """Whether a reply is data and not a sentence."""
    try:
        return isinstance(json.loads(text.strip().removeprefix("```json").strip("`\n ")), (dict, list))
    except ValueError:
        return False


def load(path: str | None) -> list[Task]:
    """Load the tasks of a file."""
    if path is None:
        return TASKS
    spec = spec_from_file_location("other_tasks", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    tasks: list[Task] = module.TASKS
    return tasks


def few(tasks: list[Task], each: int | None) -> list[Task]:
    """Return the first ``count`` tasks of each kind."""
    if each is None:
        return tasks
    return [task for kind in KINDS for task in [t for t in tasks if t.kind == kind][:each]]


def main() -> None:
    """Run all tasks with all setups and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", help="a Python file with a list TASKS")
    parser.add_argument("--model", default="local")
    parser.add_argument("--setups", default="; ".join(SETUPS), help="some of: " + "; ".join(SETUPS))
    parser.add_argument("--only", type=int, help="the number of tasks of each kind; by default all")
    parser.add_argument("--stories", action="store_true", help="show every run in one line")
    parser.add_argument("--save", metavar="FILE", help="write every run to a JSON file")
    parser.add_argument("--kind", help="only tasks of this kind")
    options = parser.parse_args()
    tasks = [t for t in few(load(options.tasks), options.only) if options.kind in (None, t.kind)]
    setups = [setup.strip() for setup in options.setups.split(";")]
    model_for = models(options.model)
    console = Console(stderr=True)
    rows: Rows = {setup: [] for setup in setups}
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars = {setup: progress.add_task(setup, total=len(tasks)) for setup in setups}
        for task in tasks:
            for setup in setups:
                row = measure(task, SETUPS[setup](), model_for(setup))
                rows[setup].append(row)
                progress.advance(bars[setup])
                if options.stories:
                    mark = "solved " if row["solved"] else "-      "
                    print(f"{mark} {setup:22} {row['seconds']:5.1f}s {task.text[:60]!r} {row['story']}", flush=True)
    show(rows, model_for(setups[0]).name, len(tasks))
    if options.save:
        Path(options.save).write_text(json.dumps(rows, indent=1))


def show(rows: Rows, model: str, tasks: int) -> None:
    """Print a table."""
    heads, cells = table(summaries(rows, model))
    shown = Table(title=f"{tasks} tasks: how many of each kind are solved, and what happened")
    for head in heads:
        shown.add_column(head, justify="right" if head else "left")
    for line in cells:
        shown.add_row(*line)
    Console(width=130).print(shown)


if __name__ == "__main__":
    main()
