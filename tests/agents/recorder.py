"""Keep an event of a coding agent, then answer it as the real command does: ``recorder.py FOLDER COMMAND...``."""

import json
import subprocess
import sys
import time
from pathlib import Path

from hookline.adapters.coding_agents.options import environment

folder, *command = sys.argv[1:]
data = sys.stdin.buffer.read()
kept = {"variables": environment(), "event": json.loads(data)}
Path(folder, f"{time.time_ns()}.json").write_text(json.dumps(kept))
sys.exit(subprocess.run(command, input=data, check=False).returncode)
