"""Hookline: an agent loop with hooks at every moment.

Everything a user needs is exported here; the folders below show how it is built.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base.errors import NotInstalled
from .base.event import Event
from .base.frozen import Frozen, FrozenDict, FrozenList, History, freeze, thaw
from .kernel.errors import (
    CallRefused,
    HookError,
    HooklineError,
    HookTimeout,
    InvalidResult,
    ModelError,
    RegistrationError,
)
from .kernel.hook import FunctionHook, Hook, guard, hook, observer
from .kernel.payloads import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalRequest,
    Compaction,
    Failure,
    Inbound,
    MessageChange,
    ModelReply,
    ModelRequest,
    Outbound,
    PersonalityChange,
    PersonalitySwitched,
    Progress,
    PromptBuild,
    PromptParts,
    Question,
    RunStart,
    SessionStart,
    StepStart,
    Stopping,
    Subagent,
    SubagentChange,
    Ticket,
    TokenDelta,
    ToolCallRequest,
    ToolCallResult,
    ToolPath,
)
from .kernel.points import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TICKET_REVISION,
    AFTER_TOOL,
    APPROVAL_DECIDED,
    APPROVAL_REQUESTED,
    BEFORE_COMPACTION,
    BEFORE_DISPATCH,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_TICKET_COMPLETE,
    BEFORE_TOOL,
    INBOUND_CLAIM,
    MESSAGE_RECEIVED,
    MESSAGE_SENDING,
    MESSAGE_SENT,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    ON_TOKEN,
    PERSONALITY_SWITCHED,
    POINTS,
    SESSION_START,
    SUBAGENT_ENDED,
    SUBAGENT_SPAWNED,
    SUBAGENT_SPAWNING,
    TOOL_END_WITH_PATH,
    Point,
)
from .kernel.points import resolve as resolve_point
from .kernel.records import HookExecuted, JudgedBeforeRewrite, MergeLost, PointFired, RetryIgnored
from .kernel.registry import HookRegistry, HookStack, Interceptor, PassThrough
from .kernel.results import Answer, HookAction, HookResult, Verdict
from .kernel.state import AgentResult, AgentState
from .kernel.values import (
    ErrorInfo,
    Ids,
    InboundMessage,
    Message,
    ModelResponse,
    OutboundMessage,
    Step,
    StopSignal,
    ToolCall,
    ToolSpec,
    Usage,
)
from .models.errors import (
    AuthError,
    BadRequest,
    ContextOverflow,
    ModelTimeout,
    Overloaded,
    ProviderError,
    RateLimited,
    UnknownModel,
    Unreachable,
)
from .models.protocol import FINISH_REASONS, Model
from .models.scripted import ScriptedLLM, ScriptedModel, call, reply
from .providers.names import get_model
from .reference import points_table
from .run.agent import Agent
from .run.budget import Budget
from .run.causes import RunFailed
from .run.context import AgentContext, Interrupt
from .run.events import (
    ApprovalAsked,
    ApprovalDecided,
    Discarded,
    EventStream,
    Failed,
    ModelCalled,
    ModelReplied,
    RunFinished,
    RunStarted,
    Signalled,
    Steered,
    StepFinished,
    StepStarted,
    TaskTaken,
    TextDelta,
    ToolEnded,
    ToolProgressed,
    ToolSettled,
    ToolStarted,
)
from .run.handle import Run
from .run.llm import GatedModel
from .run.plugin import Plugin, installed_plugins, load_plugin
from .run.session import Session
from .tools.registry import ToolRegistry, Toolset
from .tools.tool import Tool, tool

if TYPE_CHECKING:
    from .builtin.path_guard import PathGuard
    from .stores.sessions import JsonSessionStore, SessionStore, SessionSummary, StoreError
    from .tools.basic import calculator, clock
    from .tools.files import file_tools
    from .tools.mcp import McpServer, mcp
    from .tools.mcp_connection import McpError

LLMAgent = Agent
AgentEvent = Event

_LATER = {
    "JsonSessionStore": ".stores.sessions",
    "McpError": ".tools.mcp_connection",
    "McpServer": ".tools.mcp",
    "PathGuard": ".builtin.path_guard",
    "SessionStore": ".stores.sessions",
    "SessionSummary": ".stores.sessions",
    "StoreError": ".stores.sessions",
    "calculator": ".tools.basic",
    "clock": ".tools.basic",
    "file_tools": ".tools.files",
    "mcp": ".tools.mcp",
}


def __getattr__(name: str) -> Any:
    """What stands around the loop is imported when it is first used: most programs need little of it."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name], __name__), name)
    return value


__version__ = "0.1.0"

__all__ = [
    "AFTER_LLM",
    "AFTER_STEP",
    "AFTER_TICKET_REVISION",
    "AFTER_TOOL",
    "APPROVAL_DECIDED",
    "APPROVAL_REQUESTED",
    "BEFORE_COMPACTION",
    "BEFORE_DISPATCH",
    "BEFORE_LLM",
    "BEFORE_PROMPT_BUILD",
    "BEFORE_STEP",
    "BEFORE_TICKET_COMPLETE",
    "BEFORE_TOOL",
    "FINISH_REASONS",
    "INBOUND_CLAIM",
    "MESSAGE_RECEIVED",
    "MESSAGE_SENDING",
    "MESSAGE_SENT",
    "ON_ERROR",
    "ON_PROGRESS",
    "ON_RUN_END",
    "ON_RUN_START",
    "ON_STOP",
    "ON_TOKEN",
    "PERSONALITY_SWITCHED",
    "POINTS",
    "SESSION_START",
    "SUBAGENT_ENDED",
    "SUBAGENT_SPAWNED",
    "SUBAGENT_SPAWNING",
    "TOOL_END_WITH_PATH",
    "Agent",
    "AgentContext",
    "AgentEvent",
    "AgentResult",
    "AgentState",
    "Answer",
    "ApprovalAnswer",
    "ApprovalAsked",
    "ApprovalDecided",
    "ApprovalDecision",
    "ApprovalRequest",
    "AuthError",
    "BadRequest",
    "Budget",
    "CallRefused",
    "Compaction",
    "ContextOverflow",
    "Discarded",
    "ErrorInfo",
    "Event",
    "EventStream",
    "Failed",
    "Failure",
    "Frozen",
    "FrozenDict",
    "FrozenList",
    "FunctionHook",
    "GatedModel",
    "History",
    "Hook",
    "HookAction",
    "HookError",
    "HookExecuted",
    "HookRegistry",
    "HookResult",
    "HookStack",
    "HookTimeout",
    "HooklineError",
    "Ids",
    "Inbound",
    "InboundMessage",
    "Interceptor",
    "Interrupt",
    "InvalidResult",
    "JsonSessionStore",
    "JudgedBeforeRewrite",
    "LLMAgent",
    "McpError",
    "McpServer",
    "MergeLost",
    "Message",
    "MessageChange",
    "Model",
    "ModelCalled",
    "ModelError",
    "ModelReplied",
    "ModelReply",
    "ModelRequest",
    "ModelResponse",
    "ModelTimeout",
    "NotInstalled",
    "Outbound",
    "OutboundMessage",
    "Overloaded",
    "PassThrough",
    "PathGuard",
    "PersonalityChange",
    "PersonalitySwitched",
    "Plugin",
    "Point",
    "PointFired",
    "Progress",
    "PromptBuild",
    "PromptParts",
    "ProviderError",
    "Question",
    "RateLimited",
    "RegistrationError",
    "RetryIgnored",
    "Run",
    "RunFailed",
    "RunFinished",
    "RunStart",
    "RunStarted",
    "ScriptedLLM",
    "ScriptedModel",
    "Session",
    "SessionStart",
    "SessionStore",
    "SessionSummary",
    "Signalled",
    "Steered",
    "Step",
    "StepFinished",
    "StepStart",
    "StepStarted",
    "StopSignal",
    "Stopping",
    "StoreError",
    "Subagent",
    "SubagentChange",
    "TaskTaken",
    "TextDelta",
    "Ticket",
    "TokenDelta",
    "Tool",
    "ToolCall",
    "ToolCallRequest",
    "ToolCallResult",
    "ToolEnded",
    "ToolPath",
    "ToolProgressed",
    "ToolRegistry",
    "ToolSettled",
    "ToolSpec",
    "ToolStarted",
    "Toolset",
    "UnknownModel",
    "Unreachable",
    "Usage",
    "Verdict",
    "__version__",
    "calculator",
    "call",
    "clock",
    "file_tools",
    "freeze",
    "get_model",
    "guard",
    "hook",
    "installed_plugins",
    "load_plugin",
    "mcp",
    "observer",
    "points_table",
    "reply",
    "resolve_point",
    "thaw",
    "tool",
]
