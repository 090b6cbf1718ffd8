"""A stricter rule, to try on the recorded run."""

from hookline import BEFORE_TOOL, AgentContext, HookResult, ToolCallRequest, guard


@guard(BEFORE_TOOL, tools="mail_*")
def no_mail(ctx: AgentContext, call: ToolCallRequest) -> HookResult:
    """Block the call: nobody is asked any more."""
    return HookResult.block("Notes are not mailed.", reason="no mail at all")
