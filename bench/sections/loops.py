"""Section: the cost of a step of the standard run, with and without hooks, for every peer with a loop."""

from collections.abc import Sequence
from typing import Any

from charts import FLOOR, OTHER, OURS, Bar, bars
from figures import Spread, number, prose, ratio, shown, spread, table
from lab import Lab, title
from section import Section

BOTH = {"no hooks": {}, "hooks": {"hooks": "async"}}
LONG = {"100 steps": {"steps": 100}}
MORE = {"sync hooks": {"hooks": "sync"}, "every event consumed": {"events": True}}
"""Of Hookline alone."""


def measure(lab: Lab) -> dict[str, Any]:
    calls = {
        peer: found["hook_calls"]
        for peer in lab.turns(lab.peers, 1, lambda peer: f"does {title(peer)} do the work?")
        if (found := lab.peer(peer, "check"))
    }
    peers, taken = list(calls), dict[str, dict[str, list[float]]]()

    def note(peer: str, reps: int, specs: dict[str, Any]) -> None:
        for kind, times in lab.peer(peer, "loop", specs=specs, reps=reps).items():
            taken.setdefault(kind, {}).setdefault(peer, []).extend(times)

    for peer in lab.turns(peers, lab.pick(5, 1), title):
        note(peer, lab.pick(15, 1), {**BOTH, **(MORE if peer == "hookline_" else {})})
    for peer in lab.turns(peers, lab.pick(3, 1), lambda peer: f"{title(peer)}, 100 steps"):
        note(peer, lab.pick(3, 1), LONG)
    kinds = {kind: {peer: spread(times) for peer, times in found.items()} for kind, found in taken.items()}
    return {"hook_calls": calls, "kinds": kinds}


def render(data: Any) -> str:
    calls, kinds = data["hook_calls"], data["kinds"]
    none, hooked, long = kinds["no hooks"], kinds["hooks"], kinds["100 steps"]
    rows = [
        [
            title(peer), shown(none[peer], "µs"), ratio(none[peer], none["bare"]),
            shown(hooked[peer], "µs"), ratio(hooked[peer], hooked["bare"]), calls[peer],
            f"{number((hooked[peer]['median'] - none[peer]['median']) * 10 / calls[peer])} µs",
            ratio(long[peer], none[peer]),
        ]
        for peer in sorted(none, key=lambda peer: none[peer]["median"])
    ]  # fmt: skip
    head = ["", "a step, no hooks", "to the floor", "a step, 10 hooks on each point", "to the floor",
            "hook calls in a run", "each adds", "a step of 100 beside one of 10"]  # fmt: skip
    more = [
        [kind, shown(kinds[kind]["hookline_"], "µs"), ratio(kinds[kind]["hookline_"], none["hookline_"])]
        for kind in ("sync hooks", "every event consumed")
    ]
    return (
        prose(
            "Ten model calls and nine tool calls, with a model that answers at once: CPU time for a step, in all "
            "threads. Ten async hooks that do nothing are before and after the run, each model call and each tool "
            "call, as far as a peer has such points; their calls were counted. smolagents has only sync callbacks "
            "after a step. The floor is [bench/peers/bare.py](peers/bare.py): a loop over plain dicts, without "
            "checks, events or state."
        )
        + "![A step, no hooks](charts/loops.svg)\n\n![A step, with hooks](charts/loops-hooks.svg)\n\n"
        + table(head, rows)
        + "\nHookline in other ways, beside Hookline without hooks:\n\n"
        + table(["", "a step", "ratio"], more)
    )


def draw(data: Any) -> dict[str, str]:
    kinds = data["kinds"]

    def bar(peer: str, kind: str, time: Spread) -> Bar:
        label_text = f"{shown({**time, 'n': 1}, 'µs')} · {ratio(time, kinds[kind]['bare'])}"
        return Bar(title(peer), time["median"], label_text, time["q1"], time["q3"], _color(peer))

    def chart(kind: str, words: str) -> str:
        rows: Sequence[Bar] = [bar(peer, kind, time) for peer, time in kinds[kind].items()]
        return bars(words, "CPU µs and ratio to the floor", rows)

    return {
        "loops.svg": chart("no hooks", "A step of the standard run, no hooks"),
        "loops-hooks.svg": chart("hooks", "A step of the standard run, ten hooks on each main point"),
    }


def _color(peer: str) -> str:
    return {"bare": FLOOR, "hookline_": OURS}.get(peer, OTHER)


SECTION = Section("loops", "A step of the standard run", measure, render, draw)
