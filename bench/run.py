"""Measure Hookline beside a hand-written loop and other frameworks, interleaved, in one run.

python bench/run.py            # everything; writes bench/RESULTS.md
python bench/run.py --quick    # few repetitions, writes nothing: proves that the harness works

Each peer runs in its own process. Peers that need an environment of their own are used if they have
one: ``make bench-peers`` makes them under ``bench/venvs``.
"""

import argparse
import compileall
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OWN = {"bare", "hookline_", "pluggy_"}
STARTS = {
    "`import hookline`": ["-c", "import hookline"],
    "`from hookline import Agent`": ["-c", "from hookline import Agent"],
    "`import asyncio, msgspec`, most of the above": ["-c", "import asyncio, msgspec"],
    "`hookline --help`, all of it": ["-m", "hookline", "--help"],
}


def python(peer: str) -> str | None:
    """The interpreter to measure a peer with; ``None`` if it is not installed."""
    if peer in OWN:
        return sys.executable
    path = HERE / "venvs" / peer / "bin" / "python"
    return str(path) if path.exists() else None


def worker(peer: str, *args: str) -> Any:
    """One measurement in a process of its own."""
    command = [python(peer) or "", str(HERE / "worker.py"), args[0], peer, *args[1:]]
    path = os.pathsep.join((str(HERE), str(HERE.parent / "src")))  # what is measured is what is here
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise SystemExit(f"{peer} {args}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def loops(peers: list[str], rounds: int, reps: int, *args: str) -> dict[str, float]:
    """Median CPU microseconds per step, the peers taking turns."""
    seen: dict[str, list[float]] = {peer: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            seen[peer] += worker(peer, "loop", *args, "--reps", str(reps))
    return {peer: statistics.median(times) for peer, times in seen.items()}


def starts(rounds: int) -> dict[str, float]:
    """CPU milliseconds of whole processes; for imports, less those of one that does nothing."""
    seen: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(rounds):
        nothing = _cpu(["-c", "pass"])
        for name, arguments in STARTS.items():
            seen[name].append(_cpu(arguments) - (nothing if arguments[0] == "-c" else 0.0))
    return {name: statistics.median(times) for name, times in seen.items()}


def _cpu(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def alone(script: str, *args: str) -> Any:
    """One measurement by a script of its own, in a process of its own."""
    done = subprocess.run([sys.executable, str(HERE / script), *args], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def builtin_section(quick: bool) -> str:
    """The built-in hooks: what one fire of each costs."""
    taken = alone("builtin_hooks.py", "--reps", "3" if quick else "25")
    rows = [[name, f"{hook:.1f} µs ({hook / noop:.1f}x)"] for name, (hook, noop) in taken.items()]
    note = "A request of 10 messages, a result of 2 KB; the ratio is to a hook that does nothing, taking turns.\n\n"
    return "## One fire of each built-in hook, CPU\n\n" + note + table(["", "per fire"], rows)


def scanning_section(quick: bool) -> str:
    """The search for sensitive data: how much text it looks through."""
    speeds = alone("scanning.py", *(["--reps", "1", "--size", "100000"] if quick else []))
    rows = [[name, f"{speed:.0f} MB/s"] for name, speed in speeds.items()]
    return "## PII scan of clean text, all kinds\n\n" + table(["", "CPU"], rows)


def audit_section(quick: bool) -> str:
    """The audit log: how fast it is written, and what it adds to a run."""
    out = alone("audit.py", "--reps", "3" if quick else "20")
    names = {"never": "records a second to a file, `fsync` never", "batch": "the same, `fsync` batch"}
    names["signed"] = "the same, every line signed"
    rows = [
        [label, f"{out[kind][0]:,.0f} ({out[kind][1]:.1f} µs in the run's thread)"] for kind, label in names.items()
    ]
    rows.append(["records a second verified", f"{out['verify']:,.0f}"])
    bare, logged = out["steps"]["none"], out["steps"]["log"]
    rows.append(
        ["a step of the standard run with a log, CPU of all threads", f"{logged:.1f} µs (+{logged - bare:.1f} µs)"]
    )
    return "## Audit\n\n" + table(["", ""], rows)


def watched_section(times: dict[str, float], rounds: int, reps: int) -> str:
    """The standard run with those hooks on that people leave on: what it costs until all is written."""
    seen: dict[str, list[float]] = {}
    for _ in range(rounds):
        for label, taken in worker("hookline_", "watched", "--reps", str(reps), "--runs", "100").items():
            seen.setdefault(label, []).extend(taken)
    mid = {label: statistics.median(taken) for label, taken in seen.items()}
    rows = [
        [f"hookline, {label}", f"{t:.1f} µs (+{t - mid['none']:.1f})"] for label, t in mid.items() if label != "none"
    ]
    rows += [[f"{p.strip('_')}, none", f"{t:.1f} µs"] for p, t in times.items() if p not in OWN]
    rows.insert(0, ["hookline, none", f"{mid['none']:.1f} µs"])
    note = (
        "CPU per step in all threads, of 100 runs and until all of it is written; in brackets what the hooks add.\n\n"
    )
    return "## The standard run with audit, timing and observability\n\n" + note + table(["hooks", "per step"], rows)


def telemetry_section(quick: bool) -> str:
    """OpenTelemetry: what it adds to a step."""
    taken = alone("telemetry.py", "--reps", "3" if quick else "25")
    floor = taken["without it"]
    rows = [[name, f"{micros:.1f} µs ({micros / floor:.1f}x)"] for name, micros in taken.items()]
    note = "The standard run, 10 steps and 9 tool calls: 20 spans and 40 measurements in all.\n\n"
    return "## OpenTelemetryHook, CPU per step\n\n" + note + table(["", "per step"], rows)


def gateway_section(quick: bool) -> str:
    """The gateway: how many messages it answers, and how soon."""
    size = ["--conversations", "10", "--messages", "50"] if quick else []
    taken = alone("gateway.py", *size)
    wrong = {kind: out for kind, out in taken.items() if out["lost"] or out["out_of_order"] or out.get("twice")}
    if wrong:
        raise SystemExit(f"the gateway lost messages, or their order: {wrong}")
    names = {
        "flood": "all said at once",
        "talk": "each conversation says its next when it has its answer",
        "webhook flood, fetched": "the first through a signed webhook, replies fetched",
        "webhook talk, fetched": "the second through a signed webhook, replies fetched",
        "webhook talk, posted": "the same, replies posted to a callback",
    }
    rows = [
        [
            names[kind], f"{out['per_second']:,.0f}", f"{out['p50'] * 1e3:,.0f} ms", f"{out['p95'] * 1e3:,.0f} ms",
            f"{out['cpu'] * 1e3:.1f} ms",
        ]
        for kind, out in taken.items()
    ]  # fmt: skip
    count = taken["flood"]["messages"]
    note = (
        f"{count:,} messages of 200 conversations at once, a scripted model, every message and every reply on disk\n"
        "before it counts. None is lost, and none is out of order within its conversation. The webhook is served on\n"
        "this machine, and another process talks to it, so the two share its cores; CPU is that of the gateway.\n\n"
    )
    head = ["", "messages a second", "p50", "p95", "CPU per message"]
    return "## The gateway\n\n" + note + table(head, rows)


def serve_section(quick: bool) -> str:
    """The server: how many streams it holds, how soon events arrive, and what they cost."""
    taken = alone("serve.py", *(["--clients", "3", "--delay", "0.001", "--together"] if quick else []))
    streams = {kind: out for kind, out in taken.items() if "rss" in out}
    if wrong := {kind: out for kind, out in streams.items() if out["dropped"] or out["lost"] or out["repeated"]}:
        raise SystemExit(f"the server dropped clients, lost events or repeated them: {wrong}")
    names = {
        "flood": "server-sent events, words without a pause",
        "sse": "server-sent events",
        "stalled": "the same, beside 20 clients that never read",
        "resume": f"the same, each leaves twice and comes back ({taken['resume']['resumed']:,} times in all)",
        "a2a": "A2A",
        "openai": "chat completions of OpenAI",
    }
    clients, made, rows = taken["sse"]["clients"], taken["service"]["events"], []
    for kind, out in streams.items():
        first, whole, held = out["first"], out["whole"], out["rss"]
        rows.append([
            names[kind], f"{first['p50']:.2f} / {first['p95']:.2f} s", f"{whole['p50']:.2f} / {whole['p95']:.2f} s",
            f"{out['events'] / out['took']:,.0f}", f"{out['cpu'] / clients * 1e3:.1f} ms",
            f"{held['before']:.0f}, {held['peak']:.0f}, {held['after']:.0f} MB",
            f"{max(0.0, held['peak'] - held['before']) / clients * 1e3:.0f} kB",
        ])  # fmt: skip
    events = {kind: out["cpu"] / made for kind, out in taken.items()}
    costs = [
        [what, f"{events[kind] * 1e6:.0f} µs ({events[kind] / events['bare']:.1f}x)"]
        for kind, what in {
            "bare": "a run alone, whose events are counted",
            "service": "served to the same process: stored, and read again",
            "flood": "served over HTTP, words without a pause",
            "sse": "served over HTTP, a pause before each word",
            "a2a": "the same through A2A",
            "openai": "the same as chat completions",
        }.items()
    ]
    note = (
        f"{clients} clients at once, in another process, each with a connection and a run of three steps, two tool\n"
        f"calls and {made // clients} events, by a scripted model with a pause of 200 ms before each of its 34\n"
        "words, 7.2 s in all. Every event is in a file before it is sent. None is lost, repeated or out of order,\n"
        "and no client is dropped. Both processes share the cores; CPU and memory are the server's.\n\n"
    )
    head = ["", "first event, p50 / p95", "last, p50 / p95", "messages a second", "CPU per run",
            "memory before, peak, after", "per stream"]  # fmt: skip
    return "## The server\n\n" + note + table(head, rows) + "CPU for each event of a run:\n\n" + table(["", ""], costs)


def local_section(quick: bool) -> str:
    """The local model: what our side of it adds to llama.cpp."""
    took = alone("local.py", "tokens", "--rounds", "1" if quick else "9", "--tokens", "4" if quick else "40")
    held = alone("local.py", "memory")
    ratio = took["adapted"] / took["bare"]
    rows = [
        ["a token from llama.cpp's own callback", f"{took['bare'] * 1e3:.1f} ms (1.00x)"],
        ["a token from `LocalModel.stream`", f"{took['adapted'] * 1e3:.1f} ms ({ratio:.2f}x)"],
        ["from that callback to the reader: the first token", f"{took['first'] * 1e6:.0f} µs"],
        ["the same: a later token", f"{took['delay'] * 1e6:.0f} µs"],
        ["memory of a process with the model loaded and idle", f"{held['loaded']:.0f} MB"],
        ["the same after a request", f"{held['used']:.0f} MB"],
        ["the same before the weights are loaded", f"{held['before']:.0f} MB"],
    ]
    note = "Ratios here are to llama.cpp's own callback in the same process, taking turns.\n\n"
    return "## The embedded model, in this process\n\n" + note + table(["", ""], rows)


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *[[str(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n"


def measure(quick: bool) -> str:
    """All sections, as the page they go on."""
    rounds, reps = (1, 3) if quick else (5, 20)
    compileall.compile_dir(HERE.parent / "src", quiet=1)  # imports are measured as users have them
    peers = [peer for peer in ("bare", "hookline_", "agent_framework_") if python(peer)]
    page = [
        "# Benchmarks\n\nEverything here was measured in one run, the peers taking turns, and is given as a ratio to\n"
    ]
    page.append("the hand-written loop of the same run (`make bench`; `bench/peers/bare.py` is that loop).\n\n")
    page.append(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores.\n\n")

    fires: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for peer in ("bare", "hookline_", "pluggy_"):
            for label, by_n in worker(peer, "dispatch", "--reps", str(reps)).items():
                for n, micros in by_n.items():
                    fires.setdefault(label, {}).setdefault(n, []).append(micros)
    mid = {label: {n: statistics.median(v) for n, v in by_n.items()} for label, by_n in fires.items()}
    rows = []
    for label, by_n in mid.items():
        floor = mid["for-loop, async" if "async" in label else "for-loop, sync"]
        rows.append([label, *(f"{by_n[n]:.2f} µs ({by_n[n] / floor[n]:.2f}x)" for n in ("10", "100"))])
    page.append("## One fire of n no-op hooks\n\n" + table(["", "n = 10", "n = 100"], rows))

    rows = []
    kinds = [("no hooks", ["--hooks", "none"]), ("10 sync hooks on each main point", ["--hooks", "sync"])]
    kinds += [("10 async hooks on each main point", ["--hooks", "async"])]
    bare_loops: dict[str, float] = {}
    for label, args in kinds:
        times = loops(peers, rounds, reps, *args)
        bare_loops = bare_loops or times
        floor_time = times["bare"]
        rows += [[label, p.strip("_"), f"{t:.1f} µs ({t / floor_time:.2f}x)"] for p, t in times.items()]
    times = loops(["bare", "hookline_"], rounds, reps)
    heard = loops(["hookline_"], rounds, reps, "--events")["hookline_"]
    rows.append(["no hooks, every event consumed", "hookline", f"{heard:.1f} µs ({heard / times['bare']:.2f}x)"])
    page.append("## The standard run: 10 steps, 9 tool calls; CPU per step\n\n")
    page.append("The floor has async hooks wherever there are any.\n\n" + table(["hooks", "loop", "per step"], rows))

    page.append(watched_section(bare_loops, rounds, 1 if quick else 5))

    lengths = [10, 100] if quick else [10, 100, 1000]
    by_length = {
        n: loops(["hookline_"], rounds, max(3, reps * 10 // n), "--steps", str(n))["hookline_"] for n in lengths
    }
    rows = [[str(n), f"{t:.1f} µs ({t / by_length[10]:.2f}x)"] for n, t in by_length.items()]
    page.append(
        "## Growth: CPU per step of longer runs, beside that of 10 steps\n\n" + table(["steps", "per step"], rows)
    )

    runs = "50" if quick else "1000"
    rows = []
    for peer in peers:
        out = worker(peer, "concurrent", "--runs", runs)
        rows.append([peer.strip("_"), f"{out['over_ideal']:.2f}x", f"{out['kb_per_run']:.0f} KB"])
    page.append(f"## {runs} runs at once, whose model sleeps 50 ms\n\n")
    page.append(table(["", "wall time over the ideal", "memory per run"], rows))

    page.append(builtin_section(quick))
    page.append(scanning_section(quick))
    page.append(audit_section(quick))
    page.append(gateway_section(quick))
    page.append(serve_section(quick))
    if find_spec("opentelemetry") is not None and find_spec("opentelemetry.sdk") is not None:
        page.append(telemetry_section(quick))
    if find_spec("xllamacpp") is not None:
        page.append(local_section(quick))

    rows = [[name, f"{millis:.0f} ms"] for name, millis in starts(rounds * 2 + 1).items()]
    page.append("## Start, CPU time\n\n" + table(["", ""], rows))
    return "".join(page).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    page = measure(args.quick)
    print(page)
    if not args.quick:
        (HERE / "RESULTS.md").write_text(page)


if __name__ == "__main__":
    main()
