"""Standing permissions that are given or taken back over a server, in the audit log; decisions are in the run's own."""

from __future__ import annotations

import asyncio
import logging

from .._base.text import error_text
from ..stores.approvals import ApprovalRow, ApprovalStore, GrantRow
from ..stores.audit.log import AuditLog
from ..stores.errors import StoreError
from .callers import LOCAL, Caller

log = logging.getLogger("hookline")


class GrantRecords:
    """Writes them down.

    Args:
        store: where permissions are.
        audit: gets the records; ``None`` for nobody.
    """

    def __init__(self, store: ApprovalStore, audit: AuditLog | None) -> None:
        self._store, self._audit = store, audit

    async def decided(self, row: ApprovalRow, correlation_id: str) -> None:
        """A call was decided; if that gave a permission, write it down."""
        if self._audit is None or row.remember == "once":
            return
        try:
            grants = await asyncio.to_thread(self._store.grants, owner=row.owner)
        except StoreError as error:  # the decision counts all the same
            log.error("the permission that came of %s is not in the audit log: %s", row.id, error_text(error))
            return
        for grant in grants:
            if (grant.at, grant.by, grant.tool, grant.digest) == (row.decided, row.by, row.tool, row.digest):
                self._tell("given", grant, row.by, correlation_id, approval=row.id, run_id=row.root_id)
                return

    def revoked(self, grant: GrantRow, caller: Caller, correlation_id: str) -> None:
        """A permission was taken back."""
        self._tell("revoked", grant, name_of(caller), correlation_id)

    def _tell(self, what: str, grant: GrantRow, by: str, correlation_id: str, **more: str) -> None:
        if self._audit is not None:
            self._audit.record(
                "grant", action=what, grant=grant.id, by=by, scope=grant.scope, tool=grant.tool, agent=grant.agent,
                owner=grant.owner, pattern=grant.pattern, digest=grant.digest, hooks=list(grant.hooks),
                correlation_id=correlation_id, **more,
            )  # fmt: skip


def name_of(caller: Caller) -> str:
    """Who decides, as it is written down."""
    return "somebody at this machine" if caller.id == LOCAL else f"key {caller.name} ({caller.id})"
