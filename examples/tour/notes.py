"""A drawer full of notes, and two tools for it."""

from hookline import tool

NOTES = {
    "doctor": "Doctor on Monday at nine. The PIN of the door is 4711.",
    "taxes": "Taxes are due in April.",
}


@tool
def read_note(name: str) -> str:
    """Read the note."""
    return NOTES.get(name.lower()) or f"There is no note {name!r}. There are: {', '.join(NOTES)}."


@tool
def discard_note(name: str) -> str:
    """Throw the note away."""
    return f"Thrown away: {NOTES.pop(name.lower())}"
