"""Measure how long it takes to propose rules from a million moments."""

import resource
import tempfile
import time
from pathlib import Path

from probes.backtest import write_records

from hookline.suggest import propose


def speed(moments: int) -> dict[str, float]:
    """Return the seconds of CPU and of the clock, and the peak of the memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.moments"
        write_records(path, moments)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began, clock = time.process_time(), time.perf_counter()
        proposal = propose(path)
        return {
            "moments": proposal.moments,
            "calls": proposal.calls,
            "rules": len(proposal.rules) + len(proposal.left_out),
            "cpu": time.process_time() - began,
            "seconds": time.perf_counter() - clock,
            "before MB": before / 1e3,
            "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        }
