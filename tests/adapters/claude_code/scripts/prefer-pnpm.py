#!/usr/bin/env python3
"""PreToolUse: rewrites npm to pnpm with updatedInput, and tells the model why."""

import json
import sys

data = json.load(sys.stdin)
command = data["tool_input"].get("command", "")
if command.startswith("npm "):
    print(
        json.dumps(
            {
                "hookSpecificOutput": {
                    "hookEventName": "PreToolUse",
                    "permissionDecision": "allow",
                    "permissionDecisionReason": "This project uses pnpm",
                    "updatedInput": {**data["tool_input"], "command": "p" + command},
                    "additionalContext": "Use pnpm, not npm.",
                }
            }
        )
    )
