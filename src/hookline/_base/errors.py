"""Errors that every layer may raise."""

from __future__ import annotations

import os
import sys


class HooklineError(Exception):
    """Base class of all errors that Hookline raises.

    Example::

        try:
            agent.run("Hello")
        except HooklineError as error:
            print(f"the run failed: {error}")
    """


class PlainError(HooklineError):
    """An error whose message is written for models and people.

    When a tool raises it, the model gets the message without the name of the class.
    """


class NotInstalledError(HooklineError, ImportError):
    """An optional package is missing. The message contains the command that installs it.

    ``extra`` is the name of the extra (``pip install 'hookline[extra]'``) that installs the package.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: {install_command(extra)}", name=package)
        self.extra = extra


def install_command(extra: str) -> str:
    """Return the command that installs an extra: ``pip install 'hookline[server]'``.

    If Hookline runs from a checkout of its source, the command names its folder, unless it is the current one. In an
    environment of pipx, it is a command of pipx.
    """
    import shlex

    folder = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
    try:
        with open(os.path.join(folder, "pyproject.toml"), encoding="utf-8") as file:
            is_checkout = '\nname = "hookline"\n' in file.read()
    except (OSError, ValueError):
        is_checkout = False
    if not is_checkout:
        if not os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
            program = "pip install"
        elif extra == "cli":  # without it, nothing else is installed; the environment may be one of `pipx run`
            program = "pipx install --force"
        else:
            program = "pipx runpip hookline install"
        return f"{program} 'hookline[{extra}]'"
    where = "." if folder == os.getcwd() else folder
    return f"pip install -e {shlex.quote(f'{where}[{extra}]')}"


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, also if its parent package is missing."""
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
