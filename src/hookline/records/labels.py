"""Labels that people give to recorded calls afterwards, in the file ``labels.jsonl`` of a folder of records.

Each line is a JSON object: ``{"run_id": "run_3f2a91", "call_id": "call_1", "label": "bad", "by": "ann"}``, or with
``n``, the position of a moment, instead of ``call_id``. The last label of a call is the one that counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from .format import Label, RecordError

FILE = "labels.jsonl"
_NOT_PEOPLE = frozenset(("", "expired", "cancelled", "no terminal", "approval policy", "--yes", "--deny"))
"""Deciders of approvals that are not people: nobody answered, or a setting answers every question."""


def is_person(by: str) -> bool:
    """Whether the decision about an approval is that of a person about this call, so that it is a label."""
    return by not in _NOT_PEOPLE and not by.startswith("grant ")


class GivenLabel(Label, frozen=True):
    """A label of a call in a run."""

    run_id: str = ""
    n: int = -1
    """The position of the moment; -1 if the call is given by its id."""


_decoder = msgspec.json.Decoder(GivenLabel)


def add_label(folder: str | os.PathLike[str], label: GivenLabel) -> None:
    """Append a label to the file of a folder of records.

    Raises:
        RecordError: the file cannot be written.
    """
    path = os.path.join(folder, FILE)
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, msgspec.json.encode(label) + b"\n")
        finally:
            os.close(file)
    except OSError as error:
        raise RecordError(f"the label cannot be written to {path}: {error.strerror or error}") from error


def read_labels(folder: Path) -> tuple[Mapping[str, list[GivenLabel]], list[int]]:
    """Return the labels of a folder by run, and the numbers of lines that are not labels."""
    found: dict[str, dict[tuple[str, int], GivenLabel]] = {}
    invalid = []
    try:
        lines = (folder / FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return {}, []
    for number, line in enumerate(lines, 1):
        try:
            label = _decoder.decode(line)
        except msgspec.DecodeError:
            invalid.append(number)
        else:
            found.setdefault(label.run_id, {})[label.call_id, label.n] = label
    return {run: list(labels.values()) for run, labels in found.items()}, invalid
