"""The hook that records runs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

from .._base.own_files import OwnFile, register_own_file
from .._kernel.errors import RegistrationError
from .._kernel.payloads import RunStart
from .._kernel.points import ON_RUN_END, ON_TOKEN, POINTS, resolve
from .._kernel.validation import check_integer, check_names, check_path, check_positive
from .._sensitive.redactor import Redactor
from . import format as fmt
from .encoding import MomentEncoder, RunTree, describe_hooks, encode_line, tool_infos
from .redaction import MAX_TEXT, Redacted, Redaction
from .rules import rules_of
from .segments import MAX_SIZE, BlockWriter, RecordFolder, default_records_path

log = logging.getLogger("hookline")

_DAY = 86400


class RecordHook:
    """Record each run as moments, one line per fire of a point, for ``hookline backtest`` and ``hookline explain``.

    A moment contains the payload as it arrived, and what each hook made of it: verb, value, reason and changes. Only
    the owner may read the files of the folder. Recording is cheap enough to stay on in production. If a record cannot
    be written, the run goes on and reports this in its errors.

    Example::

        agent = Agent("bob", llm="openai:gpt-5-mini", hooks=[RecordHook("records/")])

    Args:
        folder: the folder; by default one per project in the user's data folder.
        points: the points to record: ``"main"`` for those at which guards decide, ``"all"`` for all except ``on_token``
            (its text is in the reply), or their names.
        redact: what is replaced before anything is written: by default all kinds of sensitive data, as in the audit
            log. A :class:`Redactor`, a function from text to text, or ``False`` to replace nothing.
        max_text: maximum number of characters of each text.
        max_size: total size of the folder in bytes; the oldest files are deleted. ``None`` for no limit.
        max_age: number of days after which files are deleted. ``None`` for no limit.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({ON_RUN_END})
    phase = "observe"

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        points: Literal["main", "all"] | Iterable[str] = "main",
        redact: Redactor | Callable[[str], str] | Literal[False] | None = None,
        max_text: int = MAX_TEXT,
        max_size: int | None = MAX_SIZE,
        max_age: float | None = 90,
    ) -> None:
        place = default_records_path(".") if folder is None else folder
        path = Path(check_path(place, "folder must be the folder of the records")).expanduser().absolute()
        if path.is_file():
            raise RegistrationError(f"{path} is a file: give RecordHook a folder")
        self.folder = path
        self._recorded_points = _points(points)
        self._redaction = Redaction(redact, max_text)
        self._files = RecordFolder(
            path,
            max_size=None if max_size is None else check_integer(max_size, "max_size"),
            max_age=None if max_age is None else check_positive(max_age, "max_age") * _DAY,
        )
        register_own_file(self, OwnFile(str(path), "Hookline's records of runs", is_folder=True))
        self._runs: dict[str, _Recording] = {}

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Report a record that could not be written."""
        recording = self._runs.get(ctx.run_id)
        if recording is not None and recording.block.problem:
            raise fmt.RecordError(recording.block.problem)

    def instrument(self, engine: Any, start: RunStart) -> AbstractContextManager[None]:
        """Record a run, unless it is a replay."""
        return nullcontext() if engine.boundary.is_replay else self._recorded(engine, start)

    @contextmanager
    def _recorded(self, engine: Any, start: RunStart) -> Iterator[None]:
        outer = self._runs.get(start.ids.parent_run_id)
        block = _Block(self._files) if outer is None else outer.block
        digest, hooks = describe_hooks(engine.hooks.stack)
        block.put_hooks(digest, hooks)
        info = run_info(engine, start, digest, None if outer is None else outer.encoder.number)
        if outer is not None:
            info = info.replace(at=round(time.perf_counter() - block.tree.started, 6))
        if self._recorded_points is not fmt.MAIN_POINTS:
            info = info.replace(points=tuple(sorted(self._recorded_points)))
        redaction = self._redaction.after(engine.hooks.allowed.redactions)
        encoder = MomentEncoder(block.tree, info, self._recorded_points, Redacted(redaction))
        self._runs[start.ids.run_id] = _Recording(block, encoder)
        engine.add_fire_observer(encoder)
        try:
            yield
        finally:
            encoder.finish(engine.result)
            del self._runs[start.ids.run_id]
            if outer is None:
                block.finish()


class _Recording:
    """A run in progress."""

    def __init__(self, block: _Block, encoder: MomentEncoder) -> None:
        self.block, self.encoder = block, encoder


class _Block:
    """The record of an outermost run and its nested runs. After a failure to write, nothing more is written."""

    def __init__(self, files: RecordFolder) -> None:
        self.problem = ""
        self._folder = files.path
        self._writer: BlockWriter | None = None
        try:
            self._writer = files.start(self._fail)
        except OSError as error:
            self._fail(error)
            self.tree = RunTree(_drop)
        else:
            self.tree = RunTree(self._writer.write, self._writer.hold)

    def put_hooks(self, digest: str, hooks: tuple[fmt.HookInfo, ...]) -> None:
        if self._writer is not None and not self._writer.has_hooks(digest):
            self._writer.hold_hooks(digest, encode_line(("hooks", digest, hooks)))

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.finish()

    def _fail(self, error: OSError) -> None:
        self.problem = f"records cannot be written to {self._folder}: {error.strerror or error}"
        log.error("%s", self.problem)


def _drop(data: bytes) -> None:
    """Write nothing, because the record cannot be written."""


def _points(points: Any) -> frozenset[str]:
    if points == "main":
        return fmt.MAIN_POINTS
    if points == "all":
        return frozenset(POINTS) - {ON_TOKEN}
    if isinstance(points, str):
        raise RegistrationError(f'points must be "main", "all" or a list of points, not {points!r:.80}')
    return frozenset(str(resolve(point)) for point in check_names(points, 'points (besides "main" and "all")'))


_shared: WeakValueDictionary[str, RecordHook] = WeakValueDictionary()
_sharing = threading.Lock()


def shared_record_hook(folder: str | os.PathLike[str] | None = None) -> RecordHook:
    """Return the hook that all agents of this process share for a folder, so that a nested run is recorded once."""
    key = os.path.realpath(default_records_path(".") if folder is None else os.path.expanduser(folder))
    with _sharing:
        hook = _shared.get(key)
        if hook is None:
            hook = _shared[key] = RecordHook(folder)
        return hook


def run_info(engine: Any, start: RunStart, hooks: str, outer: int | None) -> fmt.RunInfo:
    """Return the line of a run that starts."""
    llm, state = engine.services.llm, engine.run_state
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
        rules_of(engine.hooks.stack),
        outer=outer,
        call_id=engine.services.call_id,
        goes_on=engine.goes_on,
    )
