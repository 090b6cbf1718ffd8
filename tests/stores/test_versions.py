"""Processes of two versions that use one database at the same time: each is a copy of the source, changed a little."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from hookline.stores import RunStore, StoreError
from hookline.stores.runs import SCHEMA
from hookline.stores.schemas import all_schemas
from tests.environment import ROOT
from tests.postgres_cluster import MISSING
from tests.waiting import block_until

pytestmark = pytest.mark.sqlite  # they choose the database themselves, also for the processes that they start

PROGRAM = """
import sys
from hookline import Agent, ScriptedModel, reply
from hookline.hooks import ObservabilityHook
from hookline.stores import RunStore

store = RunStore(sys.argv[1])
agent = Agent("bot", llm=ScriptedModel([reply("done")], loop=True), hooks=[ObservabilityHook(store)])
for line in sys.stdin:
    try:
        if line.startswith("upgrade"):
            store.db.upgrade() if store.db.is_shared else store.open()
            print("upgraded", flush=True)
        else:
            status = agent.run("go", durable=store, run_id=line.strip()).status
            print(status, store.get(line.strip()).status, flush=True)
    except Exception as error:
        print(error, flush=True)
"""

# All tables get a column, in the middle of what both versions write, and there is another table.
EXPANDED = """
_NEW = ("runs", "events", "facts", "rollups", "journal", "durable_runs", "durable_totals", "controls", "workers")
SCHEMA = msgspec.structs.replace(SCHEMA, version=SCHEMA.version + 1, upgrades={**SCHEMA.upgrades, SCHEMA.version: (
    "CREATE TABLE later (id TEXT PRIMARY KEY)",
    *(f"ALTER TABLE {name} ADD COLUMN later TEXT NOT NULL DEFAULT ''" for name in _NEW),
)})
"""
# Nothing but the number says that earlier versions must not write any more.
CONTRACTED = """
SCHEMA = msgspec.structs.replace(SCHEMA, version=SCHEMA.version + 1, min_writer=SCHEMA.version + 1,
    upgrades={**SCHEMA.upgrades, SCHEMA.version: ()})
"""


class Version:
    """A version of Hookline: a copy of the source with another number and perhaps other tables."""

    def __init__(self, folder: Path, number: str, change: str = "") -> None:
        self.folder = folder / number
        shutil.copytree(ROOT / "src/hookline", self.folder / "hookline", ignore=shutil.ignore_patterns("__pycache__"))
        package = self.folder / "hookline/_base/package.py"
        package.write_text(re.sub('__version__ = ".*"', f'__version__ = "{number}"', package.read_text()))
        with open(self.folder / "hookline/stores/runs.py", "a") as module:
            module.write(change)

    def start(self, place: str) -> "Process":
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        pipe = subprocess.PIPE
        return Process([sys.executable, "-c", PROGRAM, place], env=env, stdin=pipe, stdout=pipe, text=True)


class Process(subprocess.Popen[str]):
    """A process that runs an agent for each line that it gets."""

    def ask(self, line: str) -> str:
        assert self.stdin is not None
        assert self.stdout is not None
        self.stdin.write(f"{line}\n")
        self.stdin.flush()
        return self.stdout.readline().strip()

    def __exit__(self, *error: object) -> None:
        self.kill()
        super().__exit__(*error)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.skipif(bool(MISSING), reason=MISSING))])
def place(request, tmp_path):
    return str(tmp_path / "runs.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def test_two_neighbouring_versions_work_side_by_side_after_the_tables_were_expanded(tmp_path, place):
    older, newer = Version(tmp_path, "0.0.9"), Version(tmp_path, "9.0.0", EXPANDED)
    with older.start(place) as before, newer.start(place) as process:
        assert before.ask("a") == "completed completed"
        assert process.ask("upgrade") == "upgraded"
        assert before.ask("b") == "completed completed"
        assert process.ask("c") == "completed completed"
        assert before.ask("c") == "completed completed", "each reads what the other wrote"
        assert process.ask("b") == "completed completed"
        with older.start(place) as after:
            assert after.ask("d") == "completed completed", "an older version may also start after the upgrade"
    store = RunStore(place)
    assert {run.id for run in store.runs()} == {"a", "b", "c", "d"}
    store.close()


def test_an_upgrade_that_excludes_older_processes_names_them_and_waits_for_their_end(tmp_path, place):
    older, newer = Version(tmp_path, "0.0.9"), Version(tmp_path, "9.0.0", CONTRACTED)
    with older.start(place) as before, newer.start(place) as process:
        assert before.ask("a") == "completed completed"
        refused = process.ask("upgrade")
        assert f"stop process {before.pid} on " in refused
        assert f"(Hookline 0.0.9, format {SCHEMA.version})" in refused
        assert before.ask("b") == "completed completed", "nothing was changed"
        before.kill()
        before.wait()
        if place.startswith("postgresql"):  # its lease expires
            execute(place, "UPDATE {prefix}_leases.leases SET until = 0 WHERE pid = {pid}", before.pid)
        block_until(lambda: process.ask("upgrade") == "upgraded")
        assert process.ask("c") == "completed completed"


def test_a_process_that_did_not_notice_such_an_upgrade_cannot_write(tmp_path, place):
    older, newer = Version(tmp_path, "0.0.9"), Version(tmp_path, "9.0.0", CONTRACTED)
    with older.start(place) as before, newer.start(place) as process:
        assert before.ask("a") == "completed completed"
        execute(place, "DELETE FROM {prefix}_runs.hookline_writers WHERE pid = {pid}", before.pid)
        assert process.ask("upgrade") == "upgraded"
        for number in range(3):
            assert "newer Hookline" in before.ask(f"b{number}")
        assert before.poll() is None
        with older.start(place) as after:
            assert f"newer Hookline (format {SCHEMA.version + 1}): update Hookline" in after.ask("d")
        assert process.ask("c") == "completed completed"
        assert process.ask("a") == "completed completed"
    with pytest.raises(StoreError, match="written by a newer Hookline"):
        RunStore(place).runs()
    if place.endswith(".db"):
        store = RunStore(place)
        store.db.schema = msgspec.structs.replace(SCHEMA, version=SCHEMA.version + 1)
        assert {run.id for run in store.runs()} == {"a", "c"}
        store.close()


def execute(place, sql, pid):
    """Change one row without being a process that writes the store."""
    store = RunStore(place)
    if store.db.is_shared:
        with store.db.bulk_transaction() as db:
            assert db.execute(sql.format(prefix=store.db.prefix, pid=pid)).rowcount == 1
    else:
        with closing(sqlite3.connect(place)) as db, db:
            assert db.execute(sql.format(prefix="", pid=pid).replace("_runs.", "")).rowcount == 1
        db.close()
    store.close()


def test_no_store_excludes_versions_that_do_not_exist():
    for schema in all_schemas():
        assert 1 <= schema.min_writer <= schema.version, schema.name


def test_statements_name_their_columns_so_that_another_version_may_add_some():
    """Only statements that create and convert tables know exactly which columns there are."""
    schemas = all_schemas()
    fixed = [each for schema in schemas for each in schema.statements]
    fixed += [
        each for schema in schemas for made in (schema.upgrades, schema.conversions) for each in chain(*made.values())
    ]
    known = [each if isinstance(each, str) else f"{each.sqlite} {each.postgres}" for each in fixed]
    found = []
    for path in (ROOT / "src/hookline/stores").rglob("*.py"):
        text = path.read_text()
        for match in re.finditer(r"INSERT INTO \w+ (VALUES|SELECT|\{).{0,3}|[\"']SELECT \* FROM \w.{0,20}", text):
            if not any(match[0] in each for each in known):
                found.append(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1} {match[0]}")
    assert found == []
