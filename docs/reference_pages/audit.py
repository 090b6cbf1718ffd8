"""Generate the table of records in `guides/audit.md`."""

from hookline.stores.audit.records import RECORD_TYPES, AuditRecord

from .markdown import table, with_table


def page(text: str) -> str:
    """Return the page with a new table of records."""
    return with_table(text, "records", table(("type", "written when", "fields"), map(_record, RECORD_TYPES)))


def _record(kind: type[AuditRecord]) -> tuple[str, ...]:
    fields = [f"*`{name}`*" if name in kind.texts else f"`{name}`" for name in kind.__struct_fields__]
    return f"`{kind.type}`", kind.when, ", ".join(fields)
