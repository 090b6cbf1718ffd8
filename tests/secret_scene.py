"""Secrets that are planted everywhere in a run, and the search for them in every file and table afterwards."""

from __future__ import annotations

from pathlib import Path

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.hooks import SensitiveDataHook

EXACT = ("durable_runs", "journal")
"""The tables with what a durable run needs exactly as it was."""


def planted(place):
    """A secret that only the setting of the test knows. Its end is searched: an index may store its parts."""
    return f"qzx7{place}91"


PLACES = ("intask", "inresult", "inerror", "inargument", "inreply", "innote", "insteering", "inhistory")
SENSITIVE = {"requests": True, "extra": {"planted": r"qzx7[a-z]+91"}}


def script():
    return ScriptedModel(
        [
            call("look_up"),
            call("fail"),
            call("send", to=planted("inargument")),
            call("delete", path="a.txt"),
            reply(f"It is {planted('inreply')}."),
        ]
    )


def secretive(*hooks, model=None, **options):
    """An agent whose task, tools and replies are full of secrets."""

    @tool
    def look_up() -> str:
        """Look it up."""
        return f"found {planted('inresult')}"

    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError(f"cannot log in with {planted('inerror')}")

    @tool
    def send(to: str) -> str:
        """Send it."""
        return "sent"

    @tool
    def delete(path: str) -> str:
        """Delete it."""
        return "deleted"

    @guard(BEFORE_TOOL, tools="delete")
    def ask(ctx, payload):
        return HookResult.ask(f"May {payload.name} run?")

    hooks = [SensitiveDataHook(**SENSITIVE), ask, *hooks]
    return Agent("helper", llm=model or script(), tools=[look_up, fail, send, delete], hooks=hooks, **options)


def rows_of(store):
    """All rows of all tables of a store, as text by table."""
    db = getattr(store, "db", None) or store._db
    names = (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        if db.is_shared
        else "SELECT name FROM sqlite_master WHERE type = 'table'"
    )
    found = {}
    with db.transaction() as connection:
        for (name,) in connection.execute(names).fetchall():
            rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()
            values = (value for row in rows for value in row)
            found[name] = " ".join(v.decode("latin-1") if isinstance(v, bytes) else str(v) for v in values)
    return found


def leaks(folder, *stores, exact=True):
    """Where planted secrets are: the places, and the tables or files. Without ``exact``, journals are left out."""
    texts = {}
    for store in stores:
        texts |= {name: text for name, text in rows_of(store).items() if exact or name not in EXACT}
        store.close()
    for file in Path(folder).rglob("*"):
        if file.is_file() and (exact or not file.name.startswith("runs.db")):
            texts[file.name] = file.read_bytes().decode("latin-1")
    return sorted((place, name) for name, text in texts.items() for place in PLACES if f"{place}91" in text.lower())
