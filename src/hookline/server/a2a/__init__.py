"""The A2A protocol, versions 1.0 and 0.3. A task is a served run."""
