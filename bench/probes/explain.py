"""Measure the page of a recorded run in a browser: how fast it is drawn, filtered and searched."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hookline.explain import explain, explain_html
from hookline.records import read_runs

HOOKS = [
    {"name": "redact", "points": {"before_llm": {}, "after_tool": {}}},
    {"name": "no_deleting", "points": {"before_tool": {"phase": "guard", "tools": ["shell"]}}},
    {
        "name": "audit",
        "points": {p: {"phase": "observe"} for p in ("before_llm", "after_llm", "before_tool", "after_tool")},
    },
]

DRAWN = """() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"""
"""The time from the start of the navigation to the first frame with the run."""

ACT = """async (what) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const click = (selector) => document.querySelector(selector).click();
  const act = {
    filter: () => click('[data-only="blocked"]'),
    clear: () => click('[data-only=""]'),
    tool: () => click('.choice[data-kind="tool"]'),
    next: () => click('[title^="Next"]'),
  }[what];
  await frame();
  const began = performance.now();
  act();
  await frame();
  return performance.now() - began;
}"""

SEARCH = """async (text) => {
  const field = document.querySelector('.search'), list = document.querySelector('.rows');
  const changed = new Promise((done) => {
    new MutationObserver((_, observer) => { observer.disconnect(); done(); }).observe(list, { childList: true });
  });
  field.value = text;
  const began = performance.now();
  field.dispatchEvent(new Event('input'));
  await changed;
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - began - 120;  // the page waits for more typing
}"""


def lines(moments: int) -> Iterator[list[Any]]:
    """Yield the lines of a record: four moments a step, and a block in every tenth step."""
    yield ["hookline", {"format": 1}]
    yield ["hooks", "h", HOOKS]
    yield ["run", 0, {"ids": {"run_id": "run_long", "agent": "long"}, "time": 1.8e9, "task": "Do a lot.", "hooks": "h"}]
    n = 0
    for step in range(moments // 4):
        call = {"id": f"call_{step}", "name": "shell", "arguments": {"command": f"grep -rn needle {step} src/"}}
        result = f"src/file_{step - 1}.py: found\n" * 8
        asked = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": result, "call_id": "c"}]
        reply = {"content": f"I look at part {step}.", "tool_calls": [call], "hop": step, "duration": 0.02}
        blocked = step % 10 == 9
        block = [[["no_deleting", "guard", "block", "rule 3", "Not allowed."]], ["block", "no_deleting", "rule 3"]]
        ended = {"outcome": "blocked", "error": "Not allowed."} if blocked else {"result": result}
        request = {"messages": asked if step else [], "hop": step, "model": "test"}
        yield ["before_llm", "", 0, n, n / 100, 2e-5, request, None, None, {"kept": max(0, 2 * step - 2)}]
        yield ["after_llm", "", 0, n + 1, n / 100 + 0.02, 2e-5, reply]
        yield [
            "before_tool",
            "shell",
            0,
            n + 2,
            n / 100 + 0.03,
            2e-5,
            {**call, "hop": step},
            *(block if blocked else []),
        ]
        yield ["after_tool", "shell", 0, n + 3, n / 100 + 0.04, 2e-5, {**call, **ended, "hop": step, "duration": 0.005}]
        n += 4
    yield ["end", 0, {"status": "completed", "stop": "completed", "reply": "Done.", "elapsed": moments / 100}]


def page(moments: int, loads: int) -> dict[str, Any]:
    """Return the CPU time to make the page of a long run, its size, and, with a browser, its times in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        record, file = Path(folder, "long.moments"), Path(folder, "long.html")
        record.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines(moments)))
        began = time.process_time()
        text = explain_html(explain(next(read_runs([record]))))
        made = time.process_time() - began
        file.write_text(text, encoding="utf-8")
        return {"seconds": made, "megabytes": len(text.encode()) / 1e6, "browser": in_browser(file, loads)}


def in_browser(file: Path, loads: int) -> dict[str, list[float]]:
    """Return times in milliseconds by action; nothing if there is no Chromium."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return {}
    found: dict[str, list[float]] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        tab = browser.new_page(viewport={"width": 1400, "height": 900})
        metrics = tab.context.new_cdp_session(tab)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time, whatever else the machine does

        def busy() -> float:
            taken = metrics.send("Performance.getMetrics")["metrics"]
            return 1000 * float(next(one["value"] for one in taken if one["name"] == "TaskDuration"))

        for _ in range(loads):
            tab.goto("about:blank")
            before = busy()
            tab.goto(file.as_uri())
            found.setdefault("draw", []).append(tab.evaluate(DRAWN))
            found.setdefault("draw, CPU time", []).append(busy() - before)
            for what in ("filter", "clear", "tool", "next"):
                before = busy()
                found.setdefault(what, []).append(tab.evaluate(ACT, what))
                found.setdefault(f"{what}, CPU time", []).append(busy() - before)
            tab.evaluate(ACT, "clear")
            for text in ("needle 12", "found"):
                found.setdefault("search", []).append(tab.evaluate(SEARCH, text))
        browser.close()
    return found
