"""Hide secrets in tool results.

A configuration file or a log contains keys that neither the model nor the transcript should get. Both get the result
as it leaves `after_tool`, so a hook at this point removes the keys. `SensitiveDataHook` knows many more kinds of
secrets, and also checks tasks, replies and arguments.
"""

import re

from hookline import AFTER_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallResult, call, hook, tool

SECRET = re.compile(r"(?i)\b(password|token|api[_-]?key)(\s*[=:]\s*)\S+")


@hook(AFTER_TOOL, priority=50)
def hide_secrets(ctx: AgentContext, done: ToolCallResult) -> HookResult | None:
    clean, found = SECRET.subn(r"\1\2[hidden]", done.text)
    if not found:
        return None
    field = "result" if done.error is None else "error"  # an error message may contain a secret too
    return HookResult.replace({field: clean}, reason=f"{found} hidden")


@tool
def read_config() -> str:
    """Read the configuration."""
    return "host = db.example\npassword = hunter2\napi_key: 8f3a\n"


if __name__ == "__main__":
    llm = ScriptedModel([call("read_config"), "The host is db.example."])
    result = Agent("ops", llm=llm, tools=[read_config], hooks=[hide_secrets]).run("Which host?")
    print(result.messages[2].content + result.reply)

# prints:
# host = db.example
# password = [hidden]
# api_key: [hidden]
# The host is db.example.
