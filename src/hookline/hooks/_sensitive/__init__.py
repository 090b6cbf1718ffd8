"""Personal data and secrets: how they are found and taken out of texts, for the hook in sensitive_data.py."""
