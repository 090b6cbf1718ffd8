"""The process that verifies an audit log: ``hookline audit verify`` without a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..stores.audit.index import AuditIndex
from ..stores.audit.verify import log_files, verify_audit
from ..stores.errors import StoreError
from .jobs import serve_job


def verify(given: dict[str, Any], progress: Callable[[int, int], object]) -> dict[str, Any]:
    """Verify the log ``path``, with the index at ``index`` if it is not empty."""
    index = AuditIndex(given["index"]) if given["index"] else None
    try:
        total = sum(path.stat().st_size for path in log_files([given["path"]]))
    except StoreError:  # the index may have the log
        total = 0
    report = verify_audit(given["path"], index=index, progress=lambda done: progress(done, total))
    return {"ok": report.ok, "unchanged": report.unchanged, **msgspec.to_builtins(report)}


if __name__ == "__main__":
    serve_job(verify)
