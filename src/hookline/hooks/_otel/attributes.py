"""Attribute names: those of OpenTelemetry's conventions for generative AI, and our own."""

from __future__ import annotations

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.1"
"""The version of the conventions that the names are from: the last one that defines them.

Later versions only refer to the repository of the conventions for generative AI, which has no release yet.
"""

# Operations.
OPERATION_NAME = "gen_ai.operation.name"
CHAT = "chat"
INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"

# Agents and providers.
PROVIDER_NAME = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"

# Requests.
REQUEST_MODEL = "gen_ai.request.model"
STOP_SEQUENCES = "gen_ai.request.stop_sequences"
STREAM = "gen_ai.request.stream"
OUTPUT_TYPE = "gen_ai.output.type"
INPUT_MESSAGES = "gen_ai.input.messages"

# Responses.
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
OUTPUT_MESSAGES = "gen_ai.output.messages"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"

# Tools.
TOOL_NAME = "gen_ai.tool.name"
TOOL_DESCRIPTION = "gen_ai.tool.description"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

# Names of OpenInference, which Phoenix and others show as the kind, the input and the output of a span.
SPAN_KIND = "openinference.span.kind"
INPUT = "input.value"
OUTPUT = "output.value"

# Metrics.
TOKEN_USAGE = "gen_ai.client.token.usage"
OPERATION_DURATION = "gen_ai.client.operation.duration"
TOKEN_TYPE = "gen_ai.token.type"
TOKEN_BUCKETS = tuple(float(4**n) for n in range(14))
SECOND_BUCKETS = tuple(0.01 * 2**n for n in range(14))

# General conventions.
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
EXCEPTION = "exception"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
OTHER = "_OTHER"
BLOCKED = "blocked"

PARAMS = {
    "temperature": "gen_ai.request.temperature",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
"""Numeric parameters of requests, by the names that models use."""

_PROVIDERS = {
    "google": "gcp.gemini",
    "gemini": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "vertexai": "gcp.vertex_ai",
    "vertex_ai": "gcp.vertex_ai",
    "azure": "azure.ai.openai",
    "azure_openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "aws": "aws.bedrock",
    "mistral": "mistral_ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
    "grok": "x_ai",
    "watsonx": "ibm.watsonx.ai",
}


def provider_name(provider: str) -> str:
    """Return the conventional name of a provider, or its own name if there is none."""
    return _PROVIDERS.get(provider.lower().replace("-", "_"), provider) or OTHER


# Our own.
RUN_ID = "hookline.run_id"
TASK_ID = "hookline.task_id"
CORRELATION_ID = "hookline.correlation_id"
PARENT_RUN_ID = "hookline.parent_run_id"
STATUS = "hookline.status"
STEPS = "hookline.steps"
COST = "hookline.cost"
PURPOSE = "hookline.purpose"
ATTEMPT = "hookline.attempt"
OUTCOME = "hookline.outcome"
HOOK = "hookline.hook"
POINT = "hookline.point"
VERB = "hookline.verb"
REASON = "hookline.reason"
STOP_KIND = "hookline.stop.kind"
DECISION = "hookline.decision"
DECIDED_BY = "hookline.by"
QUESTIONS = "hookline.questions"

# Our own span events and metrics.
VERDICT = "hookline.verdict"
STOP = "hookline.stop"
ASKED = "hookline.approval_asked"
DECIDED = "hookline.approval_decided"
VERDICTS = "hookline.verdicts"
RUNS = "hookline.runs"
TOOL_DURATION = "hookline.tool.duration"
