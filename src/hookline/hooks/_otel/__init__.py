"""Spans, metrics and attribute names of OpenTelemetry, for opentelemetry.py."""
