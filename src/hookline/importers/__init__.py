"""Convert the logs of other systems to records: Claude Code transcripts, OpenAI chat logs, OpenTelemetry spans."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
