"""Measure how fast the audit log is written and verified."""

import tempfile
import time
from pathlib import Path
from typing import Any

from hookline.events import HookExecuted, RunStarted
from hookline.hooks import AuditLogHook
from hookline.payloads import Ids
from hookline.stores import verify_audit
from hookline.stores.audit.keys import make_keys


def rate(hook: AuditLogHook, count: int) -> tuple[float, float]:
    """Return records per second, and microseconds of the caller's thread per record."""
    hook.on_event(RunStarted(1, time.time(), "run_1", ids=Ids("run_1", "task_1", "task_1", "session_1", "bench")))
    event = HookExecuted(2, time.time(), "run_1", "before_tool", "careful", "guard", "block", "the amount is too high")
    began = time.perf_counter()
    for _ in range(count):
        hook.on_event(event)
    put = time.perf_counter() - began
    assert hook.flush()
    assert not hook.log.lost
    return count / (time.perf_counter() - began), put / count * 1e6


def rates(count: int) -> dict[str, list[float]]:
    """For each kind of log, return records per second and microseconds of the run's thread per record.

    ``verify``: records verified per second.
    """
    out: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        private, _, _ = make_keys(folder / "key")
        options: dict[str, dict[str, Any]] = {
            "never": {"fsync": "never"},
            "batch": {"fsync": "batch"},
            "signed": {"sign": private},
        }
        for kind, given in options.items():
            hook = AuditLogHook(folder / f"{kind}.jsonl", **given)
            out[kind] = list(rate(hook, count // 10 if kind == "signed" else count))
            hook.log.close()
        began = time.perf_counter()
        records = verify_audit(folder / "batch.jsonl").records
        out["verify"] = [records / (time.perf_counter() - began)]
    return out
