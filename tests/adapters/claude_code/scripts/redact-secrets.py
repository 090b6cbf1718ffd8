#!/usr/bin/env python3
"""PostToolUse: removes tokens from the output of a command with updatedToolOutput."""

import json
import re
import sys

data = json.load(sys.stdin)
response = data["tool_response"]
clean = re.sub(r"tok_\w+", "[redacted]", response["stdout"])
if clean != response["stdout"]:
    output = {"hookEventName": "PostToolUse", "updatedToolOutput": {**response, "stdout": clean}}
    print(json.dumps({"hookSpecificOutput": output, "systemMessage": "A token was redacted."}))
