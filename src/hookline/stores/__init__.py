"""What outlives a run: conversations, memory, notes, files, tickets, approvals, keys, messages, runs, the audit log."""
