"""The option ``runs=`` of agents and adapters: the hook that puts their runs into the list of a project."""

from __future__ import annotations

import os
import threading
from typing import Any

from .._kernel.errors import RegistrationError
from ..hooks.observability import ObservabilityHook
from ..stores.errors import StoreError
from ..stores.runs import RunStore

_sharing = threading.Lock()
_shared: dict[tuple[str, int], ObservabilityHook] = {}
"""The hooks of this process by database, so that agents with the same one share a connection and a writer."""


def recorder_for(runs: Any) -> ObservabilityHook:
    """Return the hook that ``runs=`` names: the same object for the same file, so that nested runs are recorded once.

    Args:
        runs: ``True`` for the setting ``runs`` of the project in the working folder, a SQLite file, the address of a
            PostgreSQL database, a :class:`RunStore`, or an :class:`ObservabilityHook` with options of its own.

    Raises:
        RegistrationError: the value is something else, or the database cannot be used.
        ConfigError: the configuration of the project is invalid.
    """
    if isinstance(runs, ObservabilityHook):
        return _obeying(runs)
    if isinstance(runs, RunStore):
        return _shared_hook((runs.path, id(runs)), runs)
    if runs is not True and not (isinstance(runs, (str, os.PathLike)) and os.fspath(runs)):
        takes = "True, a SQLite file, a PostgreSQL address, a RunStore or an ObservabilityHook"
        raise RegistrationError(f"runs= takes {takes}, not {runs!r:.80}")
    try:
        store = _project_store() if runs is True else RunStore(runs)
    except StoreError as error:
        raise RegistrationError(f"runs=: {error}") from error
    return _shared_hook((store.path, 0), store)


def _shared_hook(key: tuple[str, int], store: RunStore) -> ObservabilityHook:
    with _sharing:
        if key not in _shared:
            _shared[key] = _obeying(ObservabilityHook(store))
        return _shared[key]


def _obeying(hook: ObservabilityHook) -> ObservabilityHook:
    """Make the runs that a hook lists obey the stop switch of their list."""
    hook.halts = hook.store.halts
    return hook


def _project_store() -> RunStore:
    from .factory import KEEP_DAYS, run_store
    from .sources import load

    settings = load().settings
    if settings.runs is None:
        raise RegistrationError("runs=True: the setting runs of this project is none, so its runs are not listed")
    return run_store(settings, settings.runs, keep_days=KEEP_DAYS)
