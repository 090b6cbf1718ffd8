"""The guide of the stores."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_code_of_the_guide_runs_in_an_empty_folder(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/stores.md").read_text(), re.DOTALL)
    command = [sys.executable, "-W", "error", "-c", "\n".join(blocks)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "- home: Oslo" in done.stdout


def test_the_guide_describes_the_real_schemas(tmp_path):
    from hookline import Session
    from hookline.stores import MemoryStore, SqliteSessionStore

    memory, sessions = MemoryStore(), SqliteSessionStore(":memory:")
    memory.facts()
    sessions.save(Session("x"))
    page = (ROOT / "docs/guides/stores.md").read_text()
    for store in (memory, sessions):
        with store._db.transaction() as db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                row = next((line for line in page.splitlines() if line.startswith(f"| `{table}` |")), None)
                assert row or table.startswith(("sqlite_", "hookline_"))
                for column in db.execute(f"PRAGMA table_info({table})") if row else ():
                    assert f"`{column[1]}`" in row
        assert f"0x{store._db.schema.application_id:X}" in page
