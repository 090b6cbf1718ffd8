"""Every public name, in one place; the folders show how it is built."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._base.event import Event
from ._base.frozen import Frozen, FrozenDict, FrozenList, History, freeze, thaw
from ._base.installing import NotInstalled
from ._kernel.errors import (
    CallRefused,
    HookError,
    HooklineError,
    HookTimeout,
    InvalidResult,
    ModelError,
    OutputError,
    RegistrationError,
)
from ._kernel.hook import Hook, guard, hook, observer
from ._kernel.payloads import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalRequest,
    Compaction,
    Failure,
    ModelReply,
    ModelRequest,
    Progress,
    PromptBuild,
    PromptParts,
    Question,
    RunStart,
    SessionStart,
    StepStart,
    Stopping,
    TokenDelta,
    ToolCallRequest,
    ToolCallResult,
    ToolPath,
)
from ._kernel.points import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_DECIDED,
    APPROVAL_REQUESTED,
    BEFORE_COMPACTION,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    ON_TOKEN,
    POINTS,
    SESSION_START,
    TOOL_END_WITH_PATH,
    Point,
)
from ._kernel.points import resolve as resolve_point
from ._kernel.records import HookExecuted, JudgedBeforeRewrite, MergeLost, PointFired, RetryIgnored
from ._kernel.registry import HookRegistry, HookStack, Interceptor, PassThrough
from ._kernel.results import Answer, HookAction, HookResult, Verdict
from ._kernel.state import AgentResult, AgentState
from ._kernel.values import (
    ErrorInfo,
    Ids,
    Message,
    ModelResponse,
    Step,
    StopSignal,
    ToolCall,
    ToolSpec,
    Usage,
)
from ._run.agent import Agent, Run
from ._run.budget import Budget, Limits
from ._run.causes import RunFailed
from ._run.context import AgentContext
from ._run.events import (
    ApprovalAsked,
    ApprovalDecided,
    Discarded,
    EventStream,
    Failed,
    ModelCalled,
    ModelReplied,
    OutputChecked,
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
from ._run.interrupt import Interrupt
from ._run.llm import GatedModel
from ._run.session import Session
from .channels.points import (
    BEFORE_DISPATCH,
    INBOUND_CLAIM,
    MESSAGE_RECEIVED,
    MESSAGE_SENDING,
    MESSAGE_SENT,
    Inbound,
    MessageChange,
    Outbound,
)
from .hooks import BUILTINS
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
from .stores.messages import (
    InboundMessage,
    OutboundMessage,
)
from .stores.ticket_points import (
    AFTER_TICKET_REVISION,
    BEFORE_TICKET_COMPLETE,
    Ticket,
)
from .teams.points import (
    PERSONALITY_SWITCHED,
    SUBAGENT_ENDED,
    SUBAGENT_SPAWNED,
    SUBAGENT_SPAWNING,
    PersonalityChange,
    PersonalitySwitched,
    Subagent,
    SubagentChange,
)
from .tools._tool import Tool, tool
from .tools.registry import ToolRegistry, Toolset

if TYPE_CHECKING:
    from ._web.errors import WebError
    from ._web.host import HttpHost
    from .channels.access import Access
    from .channels.gateway import Gateway
    from .channels.memory import MemoryChannel
    from .channels.mqtt import MqttChannel
    from .channels.options import GatewayOptions
    from .channels.protocol import Address, Capabilities, Channel, ChannelError, Health, Undeliverable
    from .channels.telegram import TelegramChannel
    from .channels.web import WebChannel
    from .channels.webhook import WebhookChannel
    from .hooks._guards import guards
    from .hooks._shadow import ShadowDecided, shadow
    from .hooks.approvals import ApprovalPending, ApprovalsHook
    from .hooks.audit_log import AuditLogHook
    from .hooks.audit_trail import AuditTrailHook
    from .hooks.compaction import Compactor, ContextCompactionHook
    from .hooks.context_config import ApplyContextConfigHook
    from .hooks.echoed_payload import EchoedPayloadHook
    from .hooks.echoing import EchoingHook
    from .hooks.egress_guard import EgressGuard
    from .hooks.episodes import EpisodeLoggerHook
    from .hooks.fallback import FallbackModelHook
    from .hooks.finish_reason import FinishReasonHook
    from .hooks.grounded_reply import GroundedReplyHook
    from .hooks.injection_guard import InjectionGuard
    from .hooks.limits import (
        CostLimitHook,
        ExecutionTimeLimitHook,
        StepsLimitHook,
        TokenUsageLimitHook,
        ToolCallsLimitHook,
    )
    from .hooks.loop_detector import LoopDetectorHook
    from .hooks.memory import MemoryInjectionHook
    from .hooks.metrics import MetricsHook
    from .hooks.model_retry import ModelRetryHook
    from .hooks.notes import NotesInjectorHook
    from .hooks.observability import ObservabilityHook
    from .hooks.path_guard import PathGuard
    from .hooks.plan_mode import PlanModeHook
    from .hooks.rate_limit import RateLimitHook
    from .hooks.response_cache import ResponseCacheHook
    from .hooks.roles import RoleBasedAccessHook
    from .hooks.safety import SafetyGuardrailHook
    from .hooks.schema_retry import SchemaRetryHook
    from .hooks.sensitive.detectors import SensitiveValue, find_sensitive
    from .hooks.sensitive.redactor import Redactor
    from .hooks.sensitive_data import SensitiveDataHook
    from .hooks.sessions import PersistSessionHook
    from .hooks.skill_evolver import SkillEvolverHook
    from .hooks.skills import SkillsHook
    from .hooks.small_models import default_slm_hooks
    from .hooks.telemetry import OpenTelemetryHook
    from .hooks.terminal_guard import TerminalGuard
    from .hooks.ticket_judge import TicketJudgeHook
    from .hooks.ticket_rules import TicketRules
    from .hooks.timing import TimingHook
    from .hooks.token_budget import TokenBudgetHook
    from .hooks.tool_retry import ToolRetryHook
    from .hooks.truncation import ToolOutputTruncatorHook
    from .plugins.manager import PluginManager
    from .server.app import Server
    from .server.build import build_server
    from .server.options import ServerOptions
    from .stores._run_stats import RunStats, run_stats
    from .stores._ticket_tools import ticket_tools
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
    from .stores.runs import CallRow, RunRecord, RunStore, VerdictRow
    from .stores.sessions import JsonSessionStore, SessionStore, SessionSummary
    from .stores.skill_files import Skill
    from .stores.skills import SkillStore
    from .stores.sqlite_sessions import SqliteSessionStore
    from .stores.ticket_rows import TicketChange, TicketError, TicketRow
    from .stores.tickets import TicketBoard
    from .tape._replay import Replay, areplay, replay
    from .tape.errors import TapeError
    from .tape.record import TapeHook
    from .tape.tape import Tape
    from .teams.errors import SubagentRefused, SwitchRefused
    from .teams.personalities import Personality
    from .teams.roster import Roster
    from .teams.subagents import Team
    from .tools._mcp import McpServer, mcp
    from .tools.basic import calculator, clock
    from .tools.command_line import CommandError, CommandLine, parse_command
    from .tools.egress import Egress, EgressError
    from .tools.files import file_tools
    from .tools.http_client import FetchError
    from .tools.mcp_connection import McpError
    from .tools.pages import FetchedPage
    from .tools.shell import shell_tool
    from .tools.web import fetch_tool

LLMAgent = Agent
AgentEvent = Event

_PARTS = {
    ".hooks.approvals": ("ApprovalPending",),
    ".hooks.compaction": ("Compactor",),
    ".hooks.sensitive.detectors": ("SensitiveValue", "find_sensitive"),
    ".hooks.sensitive.redactor": ("Redactor",),
    ".hooks.shadow": ("ShadowDecided",),
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
    ".stores.runs": ("CallRow", "RunRecord", "RunStore", "VerdictRow"),
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
    ".teams.errors": ("SubagentRefused", "SwitchRefused"),
    ".teams.personalities": ("Personality",),
    ".teams.roster": ("Roster",),
    ".teams.subagents": ("Team",),
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
    "._web.errors": ("WebError",),
    "._web.host": ("HttpHost",),
}
_LATER = {name: module for module, names in _PARTS.items() for name in names} | {
    name: f".hooks.{module}" for name, module in BUILTINS.items()
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
    "FrozenDict", "FrozenList", "GatedModel", "Gateway", "GatewayOptions", "GrantRow",
    "GroundedReplyHook", "Health", "History", "Hook", "HookAction", "HookError", "HookExecuted", "HookRegistry",
    "HookResult", "HookStack", "HookTimeout", "HooklineError", "HttpHost", "Ids", "Inbound", "InboundMessage",
    "InjectionGuard", "Interceptor", "Interrupt", "InvalidResult", "JsonSessionStore", "JudgedBeforeRewrite", "KeyRow",
    "KeyStore", "LLMAgent", "Limits", "LoopDetectorHook", "Mailbox", "McpError", "McpServer", "MemoryChannel",
    "MemoryInjectionHook", "MemoryStore", "MergeLost", "Message", "MessageChange", "MetricsHook", "Model",
    "ModelCalled", "ModelError", "ModelReplied", "ModelReply", "ModelRequest", "ModelResponse", "ModelRetryHook",
    "ModelTimeout", "MqttChannel", "NotInstalled", "NotesFile", "NotesInjectorHook", "ObservabilityHook",
    "OpenTelemetryHook", "Outbound", "OutboundMessage", "OutputChecked", "OutputError", "Overloaded", "PassThrough",
    "PathGuard", "PersistSessionHook",
    "Personality", "PersonalityChange", "PersonalitySwitched", "PlanModeHook", "Plugin", "PluginApi", "PluginError",
    "PluginManager", "Point", "PointFired", "Progress", "PromptBuild", "PromptParts", "ProviderError", "Question",
    "RateLimitHook", "RateLimited", "Redactor", "RegistrationError", "Replay", "ResponseCacheHook", "RetryIgnored",
    "RoleBasedAccessHook", "Roster", "Run", "RunFailed", "RunFinished", "RunRecord", "RunStart", "RunStarted",
    "RunStats", "RunStore", "SafetyGuardrailHook", "SchemaRetryHook", "ScriptedLLM", "ScriptedModel",
    "SensitiveDataHook", "SensitiveValue", "Server", "ServerOptions", "Session", "SessionStart", "SessionStore",
    "SessionSummary", "Setting", "ShadowDecided", "Signalled", "Skill", "SkillEvolverHook", "SkillStore", "SkillsHook",
    "SqliteSessionStore", "Steered", "Step", "StepFinished", "StepStart", "StepStarted", "StepsLimitHook",
    "StopSignal", "Stopping", "StoreError", "Subagent", "SubagentChange", "SubagentEvent", "SubagentRefused",
    "SwitchRefused", "Tape", "TapeError", "TapeHook", "TaskTaken", "Team", "TelegramChannel", "TerminalGuard",
    "TextDelta", "Ticket", "TicketBoard", "TicketChange", "TicketError", "TicketJudgeHook", "TicketRow", "TicketRules",
    "TimingHook", "TokenBudgetHook", "TokenDelta", "TokenUsageLimitHook", "Tool", "ToolCall", "ToolCallRequest",
    "ToolCallResult", "ToolCallsLimitHook", "ToolEnded", "ToolOutputTruncatorHook", "ToolPath", "ToolProgressed",
    "ToolRegistry", "ToolRetryHook", "ToolSettled", "ToolSpec", "ToolStarted", "Toolset", "Undeliverable",
    "UnknownModel", "Unreachable", "Usage", "Verdict", "VerdictRow", "WebChannel", "WebError", "WebhookChannel",
    "areplay", "build_server", "calculator", "call", "clock", "default_slm_hooks", "fetch_tool", "file_tools",
    "find_sensitive", "freeze", "get_model", "guard", "guards", "hook", "installed_plugins", "load_plugin", "mcp",
    "observer", "parse_command", "points_table", "replay", "reply", "resolve_point", "run_stats", "shadow",
    "shell_tool", "thaw", "ticket_tools", "tool", "verify_audit",
]  # fmt: skip
