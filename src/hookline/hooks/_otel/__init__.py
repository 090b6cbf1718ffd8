"""The spans and metrics of runs, for the hook in telemetry.py."""
