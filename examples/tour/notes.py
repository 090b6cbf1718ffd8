"""Some notes, and three tools for them."""

from typing import Annotated

from pydantic import Field

from hookline import tool

NOTES = {
    "doctor": "Doctor on Monday, door code 4711.",
    "taxes": "Taxes are due in April.",
}

Name = Annotated[str, Field(examples=["shopping"])]


@tool(effects=[])  # the notes are in this file: nothing outside is read or deleted
def read_note(name: Name) -> str:
    """Read a note."""
    return NOTES.get(name.lower()) or f"There is no note {name!r}. There are: {', '.join(NOTES)}."


@tool(effects=[])
def discard_note(name: Name) -> str:
    """Throw a note away."""
    return f"Thrown away: {NOTES.pop(name.lower())}"


@tool(effects=[])
def mail_note(name: Name) -> str:
    """Mail a note."""
    return f"Mailed: {NOTES[name.lower()]}"
