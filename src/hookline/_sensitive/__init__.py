"""Detection and redaction of personal data and secrets, for records, hooks and logs."""
