"""Detection and redaction of personal data and secrets, for sensitive_data.py."""
