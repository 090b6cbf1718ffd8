#!/usr/bin/env python3
"""Any event: appends the input to a log, as an audit would."""

import json
import os
import sys

line = json.dumps(json.load(sys.stdin), sort_keys=True)
with open(os.path.join(os.environ["CLAUDE_PROJECT_DIR"], "events.jsonl"), "a") as log:
    log.write(line + "\n")
