"""The program `llm` against `hookline serve`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cases import must, report

HOME = Path(tempfile.mkdtemp())
(HOME / "extra-openai-models.yaml").write_text(
    f'- model_id: agent\n  model_name: hookline\n  api_base: "{os.environ["KIT_URL"]}/v1"\n  api_key_name: agent\n'
)
(HOME / "keys.json").write_text('{"agent": "none"}')


def ask(*options: str) -> str:
    command = [sys.executable, "-m", "llm", "-m", "agent", *options]
    env = {**os.environ, "LLM_USER_PATH": str(HOME)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    must(done.returncode == 0, done.stderr[-300:])
    return done.stdout.strip()


def streams() -> None:
    must((said := ask("hi")) == "You said 'hi' with 0 files.", said)


def completes() -> None:
    must((said := ask("--no-stream", "hi")) == "You said 'hi' with 0 files.", said)


def continues() -> None:
    must((said := ask("-c", "again")) == "You said 'again' with 0 files.", said)


report({"streams": streams, "completes a chat": completes, "continues a conversation": continues})
