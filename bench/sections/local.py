"""Section: what the adapter of the local model adds to llama.cpp."""

from typing import Any

from figures import number, ratio, shown, spread, table
from lab import Lab
from section import Section


def measure(lab: Lab) -> dict[str, Any]:
    rounds, count = lab.pick((9, 40), (1, 2))
    took: dict[str, Any] = {}
    held: dict[str, float] = {}
    for what in lab.turns(["tokens"] if lab.quick else ["tokens", "memory"], 1):
        if what == "tokens":
            took = lab.probe("probes.local:tokens", rounds=rounds, count=count)
        else:
            held = lab.probe("probes.local:memory")
    return {"times": {name: spread(times) for name, times in took.items()}, "memory": held}


def render(data: Any) -> str:
    times, names = data["times"], {
        "before": "a process before the weights are loaded",
        "loaded": "the same with the model loaded and idle",
        "used": "the same after a request",
    }  # fmt: skip
    rows = [
        ["a token from llama.cpp's own callback", shown(times["bare"], "ms", 1e3), ratio(times["bare"], times["bare"])],
        [
            "a token from `LocalModel.stream`",
            shown(times["adapted"], "ms", 1e3),
            ratio(times["adapted"], times["bare"]),
        ],
        ["from that callback to the reader: the first token", shown(times["first"], "µs", 1e6), ""],
        ["the same: a later token", shown(times["delay"], "µs", 1e6), ""],
    ]
    held = [[names[name], f"{number(megabytes)} MB"] for name, megabytes in data["memory"].items()]
    return (
        "The embedded model in this process, one thread. Ratios are to llama.cpp's own callback, taking turns.\n\n"
        + table(["", "wall time", "ratio"], rows)
        + ("\n" + table(["", "memory"], held) if held else "")
    )


SECTION = Section("local", "The embedded model", measure, render, modules=("xllamacpp",))
