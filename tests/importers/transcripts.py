"""Transcripts of Claude Code, written for the tests: every line is made up."""

import itertools
import json

REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the "
    "new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed."
)


class Transcript:
    """Builds the lines of a session, each the child of the line before."""

    def __init__(self, session="session-1", agent=None):
        self.session, self.agent = session, agent
        self.lines, self.last = [], None
        self._ids = itertools.count(1)
        self._clock = itertools.count(1_790_000_000)

    def line(self, kind, message=None, *, parent=..., uuid=None, **more):
        uuid = uuid or f"{self.agent or self.session}-{next(self._ids)}"
        at = next(self._clock)
        stamp = f"2026-09-{21 + at // 86400 % 7:02d}T{at // 3600 % 24:02d}:{at // 60 % 60:02d}:{at % 60:02d}.000Z"
        line = {
            "parentUuid": self.last if parent is ... else parent,
            "isSidechain": self.agent is not None,
            "userType": "external",
            "cwd": "/home/user/project",
            "sessionId": self.session,
            "version": "2.1.282",
            "gitBranch": "main",
            "type": kind,
            "uuid": uuid,
            "timestamp": stamp,
        }
        line |= {"message": message} if message is not None else {}
        line |= {"agentId": self.agent} if self.agent else {}
        self.lines.append(line | more)
        self.last = uuid
        return uuid

    def prompt(self, text, **more):
        return self.line("user", {"role": "user", "content": text}, **more)

    def reply(self, message_id, *blocks, stop="end_turn", usage=(10, 5), **more):
        """Write one line per block, as Claude Code does: the last has the reason and the final usage."""
        for number, block in enumerate(blocks, 1):
            last = number == len(blocks)
            counts = {
                "input_tokens": usage[0],
                "cache_creation_input_tokens": 100,
                "cache_read_input_tokens": 1000,
                "output_tokens": usage[1] if last else 1,
            }
            message = {
                "id": message_id,
                "type": "message",
                "role": "assistant",
                "model": "claude-test-1",
                "content": [block],
                "stop_reason": stop if last else None,
                "usage": counts,
            }
            self.line("assistant", message, requestId=f"req-{message_id}", **more)

    def result(self, call_id, content="done", *, is_error=None, **more):
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        block |= {} if is_error is None else {"is_error": is_error}
        return self.line("user", {"role": "user", "content": [block]}, **more)

    def write(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return path


def said(text):
    return {"type": "text", "text": text}


def thought(text="hm"):
    return {"type": "thinking", "thinking": text, "signature": "abc"}


def tool_use(call_id, name, **arguments):
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
