"""Install MCP servers that others wrote, from npm and PyPI, in ``.venv/mcp``: ``make test-mcp``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / ".venv" / "mcp"
NPM = ("@modelcontextprotocol/server-filesystem@2026.8.31", "@modelcontextprotocol/server-everything@2026.8.31")
PYPI = ("mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19")
MODULES = FOLDER / "node_modules" / "@modelcontextprotocol"


def main() -> int:
    """Install what is missing."""
    mark = FOLDER / ".done"
    wanted = " ".join((*NPM, *PYPI))
    if mark.exists() and mark.read_text() == wanted:
        return 0
    if shutil.which("npm") is None:
        sys.stderr.write("npm is not installed\n")
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true}')
    npm = ["npm", "install", "--no-audit", "--no-fund", "--no-save", *NPM]
    python = FOLDER / "python"
    for command in (npm, [sys.executable, "-m", "venv", str(python)], [f"{python}/bin/pip", "install", "-q", *PYPI]):
        subprocess.run(command, cwd=FOLDER, check=True, stdout=subprocess.DEVNULL)
    mark.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
