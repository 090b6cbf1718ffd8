#!/usr/bin/env python3
"""PostToolBatch: stops the agent after it touched too many files."""

import json
import sys

calls = json.load(sys.stdin)["tool_calls"]
if sum(call["tool_name"] in ("Write", "Edit") for call in calls) > 1:
    print(json.dumps({"continue": False, "stopReason": "Two files at once: please review first."}))
