"""Words that people search for, on the pages that answer them: a page is found by these words as well as by its own."""

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

WORDS = {
    "docs/coming-from/claude-code": "claude code hooks PreToolUse PostToolUse settings.json",
    "docs/coming-from/langchain": "langchain langgraph middleware create_agent",
    "docs/coming-from/openai-agents": "openai agents sdk guardrails tripwire",
    "docs/coming-from/pydantic-ai": "pydantic ai pydanticai capabilities",
    "docs/guides/approvals": "human in the loop hitl confirm confirmation ask permission approve by link",
    "docs/guides/attachments": "attachment image picture pdf audio file upload vision multimodal",
    "docs/guides/budgets": "spending limit price tokens money quota",
    "docs/guides/console": "web ui dashboard browser gui monitor timeline inbox",
    "docs/guides/cost-per-user": "cost per user customer spending price billing",
    "docs/guides/channels/slack": "slack bot thread approve buttons",
    "docs/guides/fastapi": "fastapi starlette asgi mount embed web app",
    "docs/guides/guard-a-tool": "guardrail block a tool policy permission",
    "docs/guides/injection": "prompt injection jailbreak untrusted",
    "docs/guides/postgresql": "database postgres replicas several machines backup upgrade migrate",
    "docs/guides/keys": "api keys rate limit caller",
    "docs/guides/models": "local embedded model provider",
    "docs/guides/other-frameworks": "langchain pydantic-ai openai agents strands adk agent framework adapter",
    "docs/guides/output": "structured output json schema typed pydantic model deps dependency injection",
    "docs/guides/opentelemetry": "opentelemetry otel otlp traces tracing spans jaeger phoenix",
    "docs/guides/other-frameworks/langchain": "langchain langgraph middleware",
    "docs/guides/cedar-rego": "cedar rego opa open policy agent acs agent control specification",
    "docs/guides/rules": "rules as data policy as code cel toml compliance declarative no code opa rego cedar",
    "docs/guides/sandbox": "coding agent sandbox shell bubblewrap landlock",
    "docs/guides/small-models": "embedded model local offline no key gguf cpu",
    "docs/guides/durable": "kill -9 9 crash resume restart survive checkpoint",
    "docs/guides/evidence": "backtest replay regression rule history",
    "docs/guides/suggest": "propose suggest learn mine rules policy from history baseline anomaly",
    "docs/guides/providers": "ollama vllm lm studio groq mistral gemini azure bedrock deepseek openrouter vertex "
    "together fireworks xai grok",
    "docs/guides/coding-agents": "claude code codex copilot gemini cursor opencode qwen hooks protect PreToolUse",
    "docs/guides/claude-code-hooks": "claude code hooks scripts settings.json PreToolUse",
    "docs/guides/testing": "test a hook unit test pytest fake model",
    "docs/reference/hooks/sensitive_data": "pii personal data redact mask secrets gdpr anonymize",
}
"""Pages, and words that people search for."""


def add_words(app: Sphinx, doctree: nodes.document) -> None:
    """Add the words of a page to its search index, invisibly."""
    if words := WORDS.get(app.env.docname):
        doctree.append(nodes.meta(name="keywords", content=", ".join(words.split())))


def write_scorer(app: Sphinx, config: Config) -> None:
    """Give the words to the script that orders the results."""
    script = (Path(app.confdir) / "_static" / "scorer.js").read_text()
    words = {page: sorted({word.lower() for word in given.split()}) for page, given in WORDS.items()}
    scorer = Path(app.doctreedir) / "scorer.js"
    scorer.parent.mkdir(parents=True, exist_ok=True)
    scorer.write_text(f"const WORDS = {json.dumps(words)};\n{script}")
    config.html_search_scorer = str(scorer)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("config-inited", write_scorer)
    app.connect("doctree-read", add_words)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
