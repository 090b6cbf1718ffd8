"""``hookline db repair`` and ``hookline doctor``: contradictions are shown first, and repaired when confirmed."""

import pytest

from hookline.stores import RunStore
from tests.server.test_consistency import LONG_AGO, accept, execute

pytestmark = pytest.mark.sqlite


@pytest.fixture
def store(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOOKLINE_RUNS", str(folder / "runs.db"))
    opened = RunStore(folder / "runs.db")
    accept(opened, "a")
    execute(opened, "UPDATE runs SET status = 'completed', ended = ? WHERE run_id = 'a'", LONG_AGO)
    yield opened
    opened.close()


def test_a_repair_says_what_it_does_before_it_does_it(store, in_process):
    code, out, _ = in_process("db", "repair", "--dry-run")
    assert code == 2
    assert "run a has ended, but its journal is open" in out
    assert "end the journal" in out
    code, _, err = in_process("db", "repair")
    assert code != 0
    assert "repairing 1 problem needs --yes, because there is no terminal to ask at" in err
    assert store.journal.get("a").status == "new"
    code, out, _ = in_process("db", "repair", "--yes")
    assert (code, out.splitlines()[-1]) == (0, "repaired 1 problem")
    assert store.journal.get("a").status == "completed"
    assert in_process("db", "repair")[:2] == (0, "There is nothing to repair.\n")


def test_doctor_finds_contradictions(store, in_process):
    def state():
        return " ".join(in_process("doctor", "--no-model", "--no-sandbox")[1].split())

    assert "no stored runs run a has ended, but its journal is open: hookline db repair" in state()
    in_process("db", "repair", "--yes")
    assert "ok stored runs no contradictions" in state()
