"""Every public name, in one place; the folders show how it is built."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base.event import Event
from .base.frozen import Frozen, FrozenDict, FrozenList, History, freeze, thaw
from .base.installing import NotInstalled
from .builtin import BUILTINS
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
from .plugins.discovery import installed_plugins
from .plugins.errors import PluginError
from .plugins.loading import load_plugin
from .plugins.plugin import HOOKLINE_API, Plugin, PluginApi
from .plugins.settings import Setting
from .providers.names import get_model
from .reference import points_table
from .run.agent import Agent
from .run.budget import Budget
from .run.causes import RunFailed
from .run.context import AgentContext
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
    SubagentEvent,
    TaskTaken,
    TextDelta,
    ToolEnded,
    ToolProgressed,
    ToolSettled,
    ToolStarted,
)
from .run.handle import Run
from .run.interrupt import Interrupt
from .run.llm import GatedModel
from .run.session import Session
from .tools.registry import ToolRegistry, Toolset
from .tools.tool import Tool, tool

if TYPE_CHECKING:
    from .builtin.approvals import ApprovalPending, ApprovalsHook
    from .builtin.audit_log import AuditLogHook
    from .builtin.audit_trail import AuditTrailHook
    from .builtin.compaction import Compactor, ContextCompactionHook
    from .builtin.context_config import ApplyContextConfigHook
    from .builtin.echoed_payload import EchoedPayloadHook
    from .builtin.echoing import EchoingHook
    from .builtin.egress_guard import EgressGuard
    from .builtin.episodes import EpisodeLoggerHook
    from .builtin.fallback import FallbackModelHook
    from .builtin.finish_reason import FinishReasonHook
    from .builtin.grounded_reply import GroundedReplyHook
    from .builtin.guards import guards
    from .builtin.injection_guard import InjectionGuard
    from .builtin.limits import (
        CostLimitHook,
        ExecutionTimeLimitHook,
        StepsLimitHook,
        TokenUsageLimitHook,
        ToolCallsLimitHook,
    )
    from .builtin.loop_detector import LoopDetectorHook
    from .builtin.memory import MemoryInjectionHook
    from .builtin.metrics import MetricsHook
    from .builtin.model_retry import ModelRetryHook
    from .builtin.notes import NotesInjectorHook
    from .builtin.observability import ObservabilityHook
    from .builtin.path_guard import PathGuard
    from .builtin.plan_mode import PlanModeHook
    from .builtin.rate_limit import RateLimitHook
    from .builtin.response_cache import ResponseCacheHook
    from .builtin.roles import RoleBasedAccessHook
    from .builtin.safety import SafetyGuardrailHook
    from .builtin.schema_retry import SchemaRetryHook
    from .builtin.sensitive.detectors import SensitiveValue, find_sensitive
    from .builtin.sensitive.redactor import Redactor
    from .builtin.sensitive_data import SensitiveDataHook
    from .builtin.sessions import PersistSessionHook
    from .builtin.shadow import ShadowDecided, shadow
    from .builtin.skill_evolver import SkillEvolverHook
    from .builtin.skills import SkillsHook
    from .builtin.small_models import default_slm_hooks
    from .builtin.telemetry import OpenTelemetryHook
    from .builtin.terminal_guard import TerminalGuard
    from .builtin.ticket_judge import TicketJudgeHook
    from .builtin.ticket_rules import TicketRules
    from .builtin.timing import TimingHook
    from .builtin.token_budget import TokenBudgetHook
    from .builtin.tool_retry import ToolRetryHook
    from .builtin.truncation import ToolOutputTruncatorHook
    from .channels.access import Access
    from .channels.gateway import Gateway
    from .channels.memory import MemoryChannel
    from .channels.mqtt import MqttChannel
    from .channels.options import GatewayOptions
    from .channels.protocol import Address, Capabilities, Channel, ChannelError, Health, Undeliverable
    from .channels.telegram import TelegramChannel
    from .channels.web import WebChannel
    from .channels.webhook import WebhookChannel
    from .plugins.manager import PluginManager
    from .server.app import Server
    from .server.build import build_server
    from .server.options import ServerOptions
    from .stores.approval_rows import ApprovalRow, DecisionRefused, GrantRow
    from .stores.approvals import ApprovalStore
    from .stores.artifacts import Artifact, ArtifactStore
    from .stores.audit.lines import AuditHead
    from .stores.audit.log import AuditError, AuditLog
    from .stores.audit.verify import AuditFinding, AuditReport, verify_audit
    from .stores.blackboard import Blackboard
    from .stores.errors import StoreError
    from .stores.keys import KeyRow, KeyStore
    from .stores.mailbox import Mailbox
    from .stores.memory import MemoryStore
    from .stores.memory_rows import Episode, Fact
    from .stores.notes import NotesFile
    from .stores.run_stats import RunStats, run_stats
    from .stores.runs import CallRow, RunRow, RunStore, VerdictRow
    from .stores.sessions import JsonSessionStore, SessionStore, SessionSummary
    from .stores.skill_files import Skill
    from .stores.skills import SkillStore
    from .stores.sqlite_sessions import SqliteSessionStore
    from .stores.ticket_rows import TicketChange, TicketError, TicketRow
    from .stores.ticket_tools import ticket_tools
    from .stores.tickets import TicketBoard
    from .tape.errors import TapeError
    from .tape.record import TapeHook
    from .tape.replay import Replay, areplay, replay
    from .tape.tape import Tape
    from .team.errors import SubagentRefused, SwitchRefused
    from .team.personalities import Personality
    from .team.roster import Roster
    from .team.subagents import Team
    from .tools.basic import calculator, clock
    from .tools.command_line import CommandError, CommandLine, parse_command
    from .tools.egress import Egress, EgressError
    from .tools.files import file_tools
    from .tools.http_client import FetchError
    from .tools.mcp import McpServer, mcp
    from .tools.mcp_connection import McpError
    from .tools.pages import FetchedPage
    from .tools.shell import shell_tool
    from .tools.web import fetch_tool
    from .web.errors import WebError
    from .web.host import HttpHost

LLMAgent = Agent
AgentEvent = Event

_PARTS = {
    ".builtin.approvals": ("ApprovalPending",),
    ".builtin.compaction": ("Compactor",),
    ".builtin.sensitive.detectors": ("SensitiveValue", "find_sensitive"),
    ".builtin.sensitive.redactor": ("Redactor",),
    ".builtin.shadow": ("ShadowDecided",),
    ".channels.access": ("Access",),
    ".channels.gateway": ("Gateway",),
    ".channels.memory": ("MemoryChannel",),
    ".channels.mqtt": ("MqttChannel",),
    ".channels.options": ("GatewayOptions",),
    ".channels.protocol": ("Address", "Capabilities", "Channel", "ChannelError", "Health", "Undeliverable"),
    ".channels.telegram": ("TelegramChannel",),
    ".channels.web": ("WebChannel",),
    ".channels.webhook": ("WebhookChannel",),
    ".plugins.manager": ("PluginManager",),
    ".server.app": ("Server",),
    ".server.build": ("build_server",),
    ".server.options": ("ServerOptions",),
    ".stores.approval_rows": ("ApprovalRow", "DecisionRefused", "GrantRow"),
    ".stores.approvals": ("ApprovalStore",),
    ".stores.artifacts": ("Artifact", "ArtifactStore"),
    ".stores.audit.lines": ("AuditHead",),
    ".stores.audit.log": ("AuditError", "AuditLog"),
    ".stores.audit.verify": ("AuditFinding", "AuditReport", "verify_audit"),
    ".stores.blackboard": ("Blackboard",),
    ".stores.errors": ("StoreError",),
    ".stores.keys": ("KeyRow", "KeyStore"),
    ".stores.mailbox": ("Mailbox",),
    ".stores.memory": ("MemoryStore",),
    ".stores.memory_rows": ("Episode", "Fact"),
    ".stores.notes": ("NotesFile",),
    ".stores.run_stats": ("RunStats", "run_stats"),
    ".stores.runs": ("CallRow", "RunRow", "RunStore", "VerdictRow"),
    ".stores.sessions": ("JsonSessionStore", "SessionStore", "SessionSummary"),
    ".stores.skill_files": ("Skill",),
    ".stores.skills": ("SkillStore",),
    ".stores.sqlite_sessions": ("SqliteSessionStore",),
    ".stores.ticket_rows": ("TicketChange", "TicketError", "TicketRow"),
    ".stores.ticket_tools": ("ticket_tools",),
    ".stores.tickets": ("TicketBoard",),
    ".tape.errors": ("TapeError",),
    ".tape.record": ("TapeHook",),
    ".tape.replay": ("Replay", "areplay", "replay"),
    ".tape.tape": ("Tape",),
    ".team.errors": ("SubagentRefused", "SwitchRefused"),
    ".team.personalities": ("Personality",),
    ".team.roster": ("Roster",),
    ".team.subagents": ("Team",),
    ".tools.basic": ("calculator", "clock"),
    ".tools.command_line": ("CommandError", "CommandLine", "parse_command"),
    ".tools.egress": ("Egress", "EgressError"),
    ".tools.files": ("file_tools",),
    ".tools.http_client": ("FetchError",),
    ".tools.mcp": ("McpServer", "mcp"),
    ".tools.mcp_connection": ("McpError",),
    ".tools.pages": ("FetchedPage",),
    ".tools.shell": ("shell_tool",),
    ".tools.web": ("fetch_tool",),
    ".web.errors": ("WebError",),
    ".web.host": ("HttpHost",),
}
_LATER = {name: module for module, names in _PARTS.items() for name in names} | {
    name: f".builtin.{module}" for name, module in BUILTINS.items()
}


def __getattr__(name: str) -> Any:
    """What stands around the loop is imported when it is first used: most programs need little of it."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name], __package__), name)
    return value


__all__ = [
    "AFTER_LLM", "AFTER_STEP", "AFTER_TICKET_REVISION", "AFTER_TOOL", "APPROVAL_DECIDED", "APPROVAL_REQUESTED",
    "BEFORE_COMPACTION", "BEFORE_DISPATCH", "BEFORE_LLM", "BEFORE_PROMPT_BUILD", "BEFORE_STEP",
    "BEFORE_TICKET_COMPLETE", "BEFORE_TOOL", "FINISH_REASONS", "HOOKLINE_API", "INBOUND_CLAIM", "MESSAGE_RECEIVED",
    "MESSAGE_SENDING", "MESSAGE_SENT", "ON_ERROR", "ON_PROGRESS", "ON_RUN_END", "ON_RUN_START", "ON_STOP", "ON_TOKEN",
    "PERSONALITY_SWITCHED", "POINTS", "SESSION_START", "SUBAGENT_ENDED", "SUBAGENT_SPAWNED", "SUBAGENT_SPAWNING",
    "TOOL_END_WITH_PATH", "Access", "Address", "Agent", "AgentContext", "AgentEvent", "AgentResult", "AgentState",
    "Answer", "ApplyContextConfigHook", "ApprovalAnswer", "ApprovalAsked", "ApprovalDecided", "ApprovalDecision",
    "ApprovalPending", "ApprovalRequest", "ApprovalRow", "ApprovalStore", "ApprovalsHook", "Artifact", "ArtifactStore",
    "AuditError", "AuditFinding", "AuditHead", "AuditLog", "AuditLogHook", "AuditReport", "AuditTrailHook", "AuthError",
    "BadRequest", "Blackboard", "Budget", "CallRefused", "CallRow", "Capabilities", "Channel", "ChannelError",
    "CommandError", "CommandLine", "Compaction", "Compactor", "ContextCompactionHook", "ContextOverflow",
    "CostLimitHook", "DecisionRefused", "Discarded", "EchoedPayloadHook", "EchoingHook", "Egress", "EgressError",
    "EgressGuard", "Episode", "EpisodeLoggerHook", "ErrorInfo", "Event", "EventStream", "ExecutionTimeLimitHook",
    "Fact", "Failed", "Failure", "FallbackModelHook", "FetchError", "FetchedPage", "FinishReasonHook", "Frozen",
    "FrozenDict", "FrozenList", "FunctionHook", "GatedModel", "Gateway", "GatewayOptions", "GrantRow",
    "GroundedReplyHook", "Health", "History", "Hook", "HookAction", "HookError", "HookExecuted", "HookRegistry",
    "HookResult", "HookStack", "HookTimeout", "HooklineError", "HttpHost", "Ids", "Inbound", "InboundMessage",
    "InjectionGuard", "Interceptor", "Interrupt", "InvalidResult", "JsonSessionStore", "JudgedBeforeRewrite", "KeyRow",
    "KeyStore", "LLMAgent", "LoopDetectorHook", "Mailbox", "McpError", "McpServer", "MemoryChannel",
    "MemoryInjectionHook", "MemoryStore", "MergeLost", "Message", "MessageChange", "MetricsHook", "Model",
    "ModelCalled", "ModelError", "ModelReplied", "ModelReply", "ModelRequest", "ModelResponse", "ModelRetryHook",
    "ModelTimeout", "MqttChannel", "NotInstalled", "NotesFile", "NotesInjectorHook", "ObservabilityHook",
    "OpenTelemetryHook", "Outbound", "OutboundMessage", "Overloaded", "PassThrough", "PathGuard", "PersistSessionHook",
    "Personality", "PersonalityChange", "PersonalitySwitched", "PlanModeHook", "Plugin", "PluginApi", "PluginError",
    "PluginManager", "Point", "PointFired", "Progress", "PromptBuild", "PromptParts", "ProviderError", "Question",
    "RateLimitHook", "RateLimited", "Redactor", "RegistrationError", "Replay", "ResponseCacheHook", "RetryIgnored",
    "RoleBasedAccessHook", "Roster", "Run", "RunFailed", "RunFinished", "RunRow", "RunStart", "RunStarted", "RunStats",
    "RunStore", "SafetyGuardrailHook", "SchemaRetryHook", "ScriptedLLM", "ScriptedModel", "SensitiveDataHook",
    "SensitiveValue", "Server", "ServerOptions", "Session", "SessionStart", "SessionStore", "SessionSummary", "Setting",
    "ShadowDecided", "Signalled", "Skill", "SkillEvolverHook", "SkillStore", "SkillsHook", "SqliteSessionStore",
    "Steered", "Step", "StepFinished", "StepStart", "StepStarted", "StepsLimitHook", "StopSignal", "Stopping",
    "StoreError", "Subagent", "SubagentChange", "SubagentEvent", "SubagentRefused", "SwitchRefused", "Tape",
    "TapeError", "TapeHook", "TaskTaken", "Team", "TelegramChannel", "TerminalGuard", "TextDelta", "Ticket",
    "TicketBoard", "TicketChange", "TicketError", "TicketJudgeHook", "TicketRow", "TicketRules", "TimingHook",
    "TokenBudgetHook", "TokenDelta", "TokenUsageLimitHook", "Tool", "ToolCall", "ToolCallRequest", "ToolCallResult",
    "ToolCallsLimitHook", "ToolEnded", "ToolOutputTruncatorHook", "ToolPath", "ToolProgressed", "ToolRegistry",
    "ToolRetryHook", "ToolSettled", "ToolSpec", "ToolStarted", "Toolset", "Undeliverable", "UnknownModel",
    "Unreachable", "Usage", "Verdict", "VerdictRow", "WebChannel", "WebError", "WebhookChannel", "areplay",
    "build_server", "calculator", "call", "clock", "default_slm_hooks", "fetch_tool", "file_tools", "find_sensitive",
    "freeze", "get_model", "guard", "guards", "hook", "installed_plugins", "load_plugin", "mcp", "observer",
    "parse_command", "points_table", "replay", "reply", "resolve_point", "run_stats", "shadow", "shell_tool", "thaw",
    "ticket_tools", "tool", "verify_audit",
]  # fmt: skip
