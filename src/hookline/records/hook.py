"""The hook that records runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from .._base.files import file_name_for
from .._base.package import __version__
from .._kernel.payloads import RunStart
from .._kernel.points import ON_RUN_END
from . import format as fmt
from .encoding import MomentEncoder, RunTree, describe_hooks, tool_infos


class RecordHook:
    """Record the moments of each run: every fire of a point, and what each hook made of it."""

    points = frozenset({ON_RUN_END})
    phase = "observe"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._runs: dict[str, tuple[RunTree, MomentEncoder]] = {}

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Report a record that could not be written."""

    def instrument(self, engine: Any, start: RunStart) -> AbstractContextManager[None]:
        """Record a run, unless it is a replay."""
        is_replay = getattr(engine.environment.boundary, "is_replay", False)
        return nullcontext() if is_replay else self._recorded(engine, start)

    @contextmanager
    def _recorded(self, engine: Any, start: RunStart) -> Iterator[None]:
        outer = self._runs.get(start.ids.parent_run_id)
        file = None
        digest, hooks = describe_hooks(engine.hooks.stack)
        if outer is None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self.folder / f"{file_name_for(start.ids.run_id)}{fmt.SUFFIX}"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            number = file
            tree = RunTree(lambda data: os.write(number, data))
            tree.line("hookline", fmt.Header(fmt.VERSION, __version__, time.time()))
        else:
            tree = outer[0]
        tree.line("hooks", digest, hooks)
        info = run_info(engine, start, digest, None if outer is None else outer[1].number)
        encoder = MomentEncoder(tree, info, fmt.MAIN_POINTS)
        self._runs[start.ids.run_id] = tree, encoder
        engine.add_recorder(encoder, encoder.points)
        try:
            yield
        finally:
            encoder.finish()
            del self._runs[start.ids.run_id]
            if file is not None:
                os.close(file)


def run_info(engine: Any, start: RunStart, hooks: str, outer: int | None) -> fmt.RunInfo:
    """Return the line of a run that starts."""
    llm, state = engine.services.llm, engine.state
    return fmt.RunInfo(
        start.ids,
        time.time(),
        start.task,
        state.system_prompt,
        llm.name if llm is not None else "",
        llm.provider if llm is not None else "",
        dict(state.metadata) or None,
        tool_infos(engine.tools),
        hooks,
        outer=outer,
    )
