"""Projects in which coding agents call ``hookline agent-hook``."""

import tempfile
from pathlib import Path

import pytest

from .test_command import ClaudeCode


@pytest.fixture
def new(tmp_path):
    """Make a project with its own rules."""
    made = []

    def make(rules: str, *options: str, name: str = "rules.py") -> ClaudeCode:
        (tmp_path / name).write_text(rules)
        tmp_path.chmod(0o755)
        made.append(ClaudeCode(tmp_path, Path(tempfile.mkdtemp(prefix="hl")), *options, rules=name))
        return made[-1]

    yield make
    for each in made:
        each.close()
