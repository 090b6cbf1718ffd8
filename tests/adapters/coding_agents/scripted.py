"""Coding agents of a few lines: the events that they send, and what they do because of an answer.

The events of Codex 0.169.0, Copilot CLI 1.0.102, Gemini CLI 0.61.0 and Qwen Code 0.24.4 have the fields that these
programs sent; those of Cursor were read in the code of its SDK 1.0.18; those of opencode come from our own plugin.
"""

from __future__ import annotations

import json
from typing import Any

from hookline.adapters.coding_agents.judge import Judge

SESSION = "01a1ea9e-c7a6-7d32-bde9-dafe14666176"
CLAUDE = {"session_id": SESSION, "transcript_path": f"/home/ada/.claude/projects/-shop/{SESSION}.jsonl", "cwd": "/shop"}
CODEX = {
    "session_id": SESSION,
    "turn_id": "01a1ea9e-c7ca-7792-a0b0-dd4ee08fb158",
    "transcript_path": None,
    "cwd": "/shop",
    "model": "gpt-6",
    "permission_mode": "bypassPermissions",
}
COPILOT = {"session_id": SESSION, "timestamp": "2026-11-17T17:47:34.128Z", "cwd": "/shop"}
GEMINI = {"session_id": SESSION, "transcript_path": "/t.jsonl", "cwd": "/shop", "timestamp": "2026-11-17T17:47:38.594Z"}
CURSOR = {
    "conversation_id": "c",
    "generation_id": "g",
    "cursor_version": "2.0",
    "session_id": SESSION,
    "workspace_roots": ["/shop"],
}


SHELLS = {"cursor": "Shell", "gemini": "run_shell_command", "opencode": "bash", "qwen": "run_shell_command"}
"""The shell of each agent, if it is not called ``Bash``."""
NAMES = {
    "cursor": {
        "UserPromptSubmit": "beforeSubmitPrompt",
        "PreToolUse": "preToolUse",
        "PostToolUse": "postToolUse",
        "PostToolUseFailure": "postToolUseFailure",
        "PreCompact": "preCompact",
        "Stop": "stop",
    },
    "gemini": {
        "UserPromptSubmit": "BeforeAgent",
        "PreToolUse": "BeforeTool",
        "PostToolUse": "AfterTool",
        "PreCompact": "PreCompress",
        "Stop": "AfterAgent",
    },
    "opencode": {
        "UserPromptSubmit": "chat.message",
        "PreToolUse": "tool.execute.before",
        "PostToolUse": "tool.execute.after",
        "Stop": "session.idle",
    },
}
"""The names of events, where they are not those of Claude Code."""
OWN: dict[str, dict[str, Any]] = {
    "claude": CLAUDE,
    "codex": CODEX,
    "copilot": COPILOT,
    "cursor": CURSOR,
    "gemini": GEMINI,
    "opencode": {"session": "s", "cwd": "/shop"},
    "qwen": {**GEMINI, "permission_mode": "yolo"},
}
"""The fields of all events of an agent."""


def event_of(agent: str, name: str, **fields: Any) -> dict[str, Any]:
    """An event, by the name that Claude Code has for it."""
    key = "event" if agent == "opencode" else "hook_event_name"
    return {**OWN[agent], key: NAMES.get(agent, {}).get(name, name), **fields}


def call_event(agent: str, tool: str, given: dict[str, Any], id: str = "call_1") -> dict[str, Any]:
    """A call, by the agent's names. Copilot CLI and Gemini CLI give calls no ids."""
    if agent == "opencode":
        return event_of(agent, "PreToolUse", call=id, tool=tool, args=given)
    ids = {} if agent in ("copilot", "gemini") else {"tool_use_id": id}
    return event_of(agent, "PreToolUse", tool_name=tool, tool_input=given, **ids)


def shell_event(agent: str, command: str) -> dict[str, Any]:
    """A shell command, as the agent announces it."""
    more = {"is_background": False} if agent in ("gemini", "qwen") else {}
    return call_event(agent, SHELLS.get(agent, "Bash"), {"command": command, **more})


def result_event(agent: str, result: Any, call: dict[str, Any] | None = None) -> dict[str, Any]:
    """The result of a call; by default of a shell command."""
    fields = {
        "copilot": {"tool_result": {"result_type": "success", "text_result_for_llm": result}},
        "cursor": {"tool_output": result},
        "gemini": {"tool_response": {"llmContent": result, "returnDisplay": result}},
        "opencode": {"output": result},
        "qwen": {"tool_response": {"llmContent": result, "returnDisplay": result}},
    }.get(agent, {"tool_response": result})
    return {**(call or shell_event(agent, "cat notes")), **event_of(agent, "PostToolUse", **fields)}


def failure_event(agent: str, error: str, call: dict[str, Any]) -> dict[str, Any]:
    """The error of a call, in the agents that have an event for it."""
    name = "error_message" if agent == "cursor" else "error"
    return {**call, **event_of(agent, "PostToolUseFailure", **{name: error})}


def prompt_event(agent: str, text: str) -> dict[str, Any]:
    """A prompt of the user."""
    return event_of(agent, "UserPromptSubmit", prompt=text)


def stop_event(agent: str, reply: str = "Done.") -> dict[str, Any]:
    """The agent is about to stop. Some agents say what the model has replied."""
    name = {"copilot": "", "cursor": "", "gemini": "prompt_response", "opencode": ""}.get(
        agent, "last_assistant_message"
    )
    return event_of(agent, "Stop", **({name: reply} if name else {}))


class Host:
    """An agent that does what the answer says, by its own rules.

    ``stopped`` is whether a hook has stopped it.
    """

    def __init__(self, agent: str, judge: Judge) -> None:
        self.agent, self.judge = agent, judge
        self.stopped = False
        self.raw = ""

    async def send(self, event: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Return the JSON of an answer, and what exit code 2 says."""
        answer = await self.judge.answer("cli\0\0", json.dumps(event).encode())
        assert answer.code in (0, 2)
        if answer.code == 2 and self.agent != "claude":
            assert not answer.stdout
        self.raw = answer.stdout.decode() + answer.stderr.decode()
        deaf = self.agent == "copilot" and event.get("hook_event_name") == "UserPromptSubmit"
        deaf = deaf or (self.agent == "qwen" and event.get("hook_event_name") == "PostToolUse")
        blocked = answer.stderr.decode() if answer.code == 2 and not deaf else None
        found = json.loads(answer.stdout or b"{}")
        self.stopped = self.agent == "claude" and found.get("continue") is False
        return found, blocked

    async def prompt(self, text: str) -> str | None:
        """Return why a prompt is not sent to the model; ``None`` if it is."""
        found, blocked = await self.send(prompt_event(self.agent, text))
        if blocked is not None:
            return blocked
        if self.agent == "opencode":
            return found.get("deny")
        if self.agent == "cursor":
            return found["user_message"] if found.get("continue") is False else None
        return found["reason"] if found.get("decision") == "block" else None

    async def stop(self, reply: str) -> str | None:
        """Return what the model gets although the agent was about to stop; ``None`` if it stops."""
        found, blocked = await self.send(stop_event(self.agent, reply))
        if self.agent == "cursor":
            return found.get("followup_message")
        return blocked if blocked is not None else found.get("reason")

    async def call(self, event: dict[str, Any]) -> tuple[str, Any]:
        """Return what a call becomes: ("runs", its arguments), ("asks", question) or ("denied", reason)."""
        found, blocked = await self.send(event)
        given = event.get("tool_input", event.get("args"))
        if blocked is not None:
            return "denied", blocked
        if self.agent == "opencode":
            return ("denied", found["deny"]) if "deny" in found else ("runs", found.get("args", given))
        if self.agent == "cursor":
            reason = found.get("agent_message", found.get("user_message"))
            outcome = {"deny": "denied", "ask": "asks"}.get(found.get("permission", ""), "runs")
            return outcome, found.get("updated_input", given) if outcome == "runs" else reason
        specific = found.get("hookSpecificOutput", {})
        if self.agent == "gemini":
            return "runs", {**given, **specific.get("tool_input", {})}
        outcome = {"deny": "denied", "ask": "asks"}.get(specific.get("permissionDecision", ""), "runs")
        if outcome == "runs":
            return outcome, specific.get("updatedInput", given)
        return outcome, specific["permissionDecisionReason"]

    async def read(self, event: dict[str, Any]) -> Any:
        """Return what the model reads of a result."""
        found, blocked = await self.send(event)
        if blocked is not None:
            return blocked
        if self.agent == "opencode":  # its plugin throws what is denied
            return found.get("deny", found.get("output", event["output"]))
        if self.agent == "copilot":
            return found.get("modifiedResult", {}).get("textResultForLlm", event["tool_result"]["text_result_for_llm"])
        if self.agent == "gemini":
            return found.get("reason", event["tool_response"]["llmContent"])
        if self.agent == "qwen":  # a note beside the result, and exit code 2, change nothing
            return found["stopReason"] if found.get("continue") is False else event["tool_response"]["llmContent"]
        if self.agent == "cursor":  # the note comes beside the result
            return found.get("additional_context", event["tool_output"])
        beside = found.get("reason", event["tool_response"])
        return found.get("hookSpecificOutput", {}).get("updatedToolOutput", beside)

    async def fail(self, event: dict[str, Any], error: str) -> str:
        """Return what the model reads of a call that failed: the error, or what a hook adds to it."""
        found, blocked = await self.send(event)
        return blocked or found.get("reason") or found.get("additional_context") or error
