"""Packages that are not there, and the command that brings them."""

from __future__ import annotations

from .errors import HooklineError


class NotInstalledError(HooklineError, ImportError):
    """A part of Hookline needs a package that is not installed; the message has the command."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: {install_command(extra)}", name=package)
        self.extra = extra


def install_command(extra: str) -> str:
    """The command that installs what an extra brings; in a checkout of the source, from that folder."""
    import shlex
    from pathlib import Path

    folder = Path(__file__).parents[3]
    try:
        if '\nname = "hookline"\n' in (folder / "pyproject.toml").read_text("utf-8"):
            where = "." if folder == Path.cwd() else str(folder)
            return f"pip install -e {shlex.quote(f'{where}[{extra}]')}"
    except (OSError, ValueError):
        pass  # not a checkout, or not one that can be read
    return f"pip install 'hookline[{extra}]'"
