"""A long run for the tests and measurements of pages: four moments a step, and a block in every tenth step."""

from pathlib import Path

from hookline._kernel.values import Ids
from hookline.explain.view import RunView, explain
from hookline.records import format as fmt
from hookline.records.reading import RecordedMoment, RecordedRun

HOOKS = (
    fmt.HookInfo("redact", {"before_llm": fmt.HookAtPoint(), "after_tool": fmt.HookAtPoint()}),
    fmt.HookInfo("no_deleting", {"before_tool": fmt.HookAtPoint("guard", tools=("shell",))}),
    fmt.HookInfo("audit", {point: fmt.HookAtPoint("observe", order=9) for point in fmt.MAIN_POINTS}),
)


def recorded_run(moments: int) -> RecordedRun:
    """Return a record of a run with this many moments."""
    import msgspec

    info = fmt.RunInfo(Ids("run_long", agent="long"), 1.8e9, "Do a lot.", model="test", hooks="h")
    run = RecordedRun(0, info, HOOKS, Path("long.moments"))

    def add(point: str, tool: str, payload: object, **more: object) -> None:
        n = len(run.moments)
        line = fmt.MomentLine(point, tool, 0, n, n * 0.01, 0.00002, msgspec.Raw(msgspec.json.encode(payload)), **more)  # type: ignore[arg-type]
        run.moments.append(RecordedMoment(line, run))

    for step in range(moments // 4):
        id, command = f"call_{step}", f"grep -rn needle {step} src/ --include '*.py'"
        blocked = step % 10 == 9
        result = {"role": "tool", "content": f"src/file_{step - 1}.py: found\n" * 8, "call_id": f"call_{step - 1}"}
        messages = [{"role": "assistant", "tool_calls": [{"name": "shell"}]}, result] if step else []
        add("before_llm", "", {"messages": messages, "hop": step, "model": "test"}, notes=fmt.Notes(kept=2 * step))
        usage = {"input_tokens": 900 + step, "output_tokens": 40}
        calls = [{"id": id, "name": "shell", "arguments": {"command": command}}]
        reply = {
            "content": f"I look at part {step}.",
            "tool_calls": calls,
            "hop": step,
            "usage": usage,
            "duration": 0.02,
        }
        add("after_llm", "", reply)
        decisions = (fmt.Decision("no_deleting", "guard", "block", "rule 3", "Not allowed."),) if blocked else None
        verdict = fmt.RecordedVerdict("block", "no_deleting", "rule 3") if blocked else None
        call = {"id": id, "name": "shell", "arguments": {"command": command}, "hop": step}
        add("before_tool", "shell", call, decisions=decisions, verdict=verdict)
        given = {"outcome": "blocked", "error": "Not allowed."} if blocked else {"result": result["content"]}
        add("after_tool", "shell", {**call, **given, "duration": 0.005})
    run.end = fmt.RunEnd("completed", "completed", reply="Done.", steps=moments // 4, elapsed=moments * 0.01)
    return run


def long_run(moments: int) -> RunView:
    """Return the view of a long run."""
    return explain(recorded_run(moments))
