"""The hooks that everybody needs, one file per concern. Each is made of what any hook can use."""

CONCERNS = {
    "Limits": {
        "StepsLimitHook": "limits",
        "TokenUsageLimitHook": "limits",
        "ExecutionTimeLimitHook": "limits",
        "CostLimitHook": "limits",
        "ToolCallsLimitHook": "limits",
        "RateLimitHook": "rate_limit",
        "FinishReasonHook": "finish_reason",
        "guards": "guards",
    },
    "Safety and access": {
        "SafetyGuardrailHook": "safety",
        "PlanModeHook": "plan_mode",
        "ApprovalsHook": "approvals",
        "RoleBasedAccessHook": "roles",
        "PathGuard": "path_guard",
        "EgressGuard": "egress_guard",
        "SensitiveDataHook": "sensitive_data",
        "InjectionGuard": "injection_guard",
        "TerminalGuard": "terminal_guard",
    },
    "What the model is given": {
        "ApplyContextConfigHook": "context_config",
        "MemoryInjectionHook": "memory",
        "NotesInjectorHook": "notes",
        "SkillsHook": "skills",
        "TokenBudgetHook": "token_budget",
        "ContextCompactionHook": "compaction",
        "ToolOutputTruncatorHook": "truncation",
    },
    "Failures": {
        "ModelRetryHook": "model_retry",
        "FallbackModelHook": "fallback",
        "ToolRetryHook": "tool_retry",
    },
    "Small models": {
        "LoopDetectorHook": "loop_detector",
        "EchoedPayloadHook": "echoed_payload",
        "GroundedReplyHook": "grounded_reply",
        "SchemaRetryHook": "schema_retry",
        "default_slm_hooks": "small_models",
    },
    "Keeping and watching": {
        "PersistSessionHook": "sessions",
        "EpisodeLoggerHook": "episodes",
        "AuditLogHook": "audit_log",
        "AuditTrailHook": "audit_trail",
        "TimingHook": "timing",
        "ObservabilityHook": "observability",
        "MetricsHook": "metrics",
        "OpenTelemetryHook": "telemetry",
        "EchoingHook": "echoing",
    },
    "Teams": {
        "TicketRules": "ticket_rules",
        "TicketJudgeHook": "ticket_judge",
    },
    "Learning": {
        "SkillEvolverHook": "skill_evolver",
    },
    "Saving and trying out": {
        "ResponseCacheHook": "response_cache",
        "shadow": "shadow",
    },
}
"""Every built-in hook and bundle with its module here, by what they are for, in the order they are shown."""

BUILTINS = {name: module for names in CONCERNS.values() for name, module in names.items()}
"""The same without the concerns. Configuration files may use these names."""
