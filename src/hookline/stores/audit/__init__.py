"""The audit log: a file of chained lines that can be verified (docs/guides/audit.md)."""
