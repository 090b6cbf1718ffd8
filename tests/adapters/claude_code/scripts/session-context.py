#!/usr/bin/env python3
"""SessionStart: adds context that depends on how the session starts."""

import json
import os
import sys

data = json.load(sys.stdin)
project = os.path.basename(os.environ["CLAUDE_PROJECT_DIR"])
text = f"Project {project}, session {data['source']}."
print(json.dumps({"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": text}}))
