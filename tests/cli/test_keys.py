"""``hookline keys``: made, listed and revoked at the command line."""

import json
import time

import pytest

from hookline.stores.keys import KeyStore


@pytest.fixture
def keys(folder, in_process, monkeypatch):
    (folder / "hookline.toml").write_text('runs = "runs.db"\n')
    monkeypatch.chdir(folder)
    return lambda *args: in_process("keys", *args)


@pytest.fixture
def store(folder, keys):
    store = KeyStore(folder / "keys.db")
    yield store
    store.close()


def test_the_key_alone_is_on_stdout(keys, store):
    code, out, err = keys("add", "ci", "--scope", "read,run", "--scope", "approve", "--metadata", "user_role=customer")
    assert code == 0
    row = store.find(out.removesuffix("\n"))
    assert (row.name, row.scopes, row.metadata) == ("ci", ("read", "run", "approve"), {"user_role": "customer"})
    assert "not shown again" in err
    assert out.strip() not in err


def test_a_key_without_useful_scopes_gets_a_note(keys):
    assert "without admin it cannot see" in keys("add", "approver", "--scope", "approve")[2]
    for number, rights in enumerate(("approve,admin", "read,run", "admin")):
        assert "note" not in keys("add", f"k{number}", "--scope", rights)[2]


@pytest.mark.parametrize(("given", "seconds"), [("90m", 5400), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600)])
def test_a_key_may_expire_after_some_time(keys, store, given, seconds):
    before = time.time()
    assert keys("add", "ci", "-s", "run", "--expires", given)[0] == 0
    assert before + seconds <= store.keys()[0].expires <= time.time() + seconds


def test_or_at_some_time(keys, store):
    assert keys("add", "ci", "-s", "run", "--expires", "2999-01-31")[0] == 0
    assert time.strftime("%Y-%m-%d", time.localtime(store.keys()[0].expires)) == "2999-01-31"


def test_the_list_shows_all_but_the_keys(keys, store):
    assert "hookline keys add NAME" in keys()[1]
    made = [keys("add", name, "--scope", "read,run")[1].strip() for name in ("ci", "old")]
    assert keys("revoke", "old")[0] == 0
    store.find(made[0])
    store.mark_used(store.keys()[0])
    store.flush()
    code, out, _ = keys()
    assert code == 0
    first, second = out.splitlines()[1:]
    assert first.split()[1:4] == ["ci", "read,", "run"]
    assert first.endswith("active")
    assert second.endswith("revoked")
    assert not [key for key in made if key[12:] in out]
    listed = json.loads(keys("list", "--json")[1])
    assert [(row["name"], row["state"], row["last_used"] is None) for row in listed] == [
        ("ci", "active", False),
        ("old", "revoked", True),
    ]
    assert listed == json.loads(keys("--json")[1])


def test_a_key_is_revoked_by_name_or_id(keys, store):
    made = [keys("add", name, "--scope", "run")[1].strip() for name in ("a", "b")]
    assert keys("revoke", "a")[0] == 0
    assert keys("revoke", store.keys()[1].id)[0] == 0
    assert [store.find(key) for key in made] == [None, None]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("add", "x"), "--scope read,run"),
        (("add", "x", "--scope", "reed"), "Did you mean 'read'"),
        (("add", "ci", "--scope", "run"), "already a key 'ci': revoke it first"),
        (("add", "x", "--scope", "run", "--expires", "soon"), "30d"),
        (("add", "x", "--scope", "run", "--expires", "999999w"), "30d"),
        (("add", "x", "--scope", "run", "--expires", "2001-01-01"), "already be expired"),
        (("add", "x", "--scope", "run", "--metadata", "role"), "KEY=VALUE"),
        (("add", "x\x1b[2J", "--scope", "run"), "name of 1 to 64"),
        (("revoke", "cii"), "Did you mean 'ci'"),
        (("revoke", "\x1b[2J"), "no key"),
        (("rovoke", "ci"), "rovoke"),
    ],
)
def test_a_mistake_is_reported_with_advice(keys, store, args, words):
    store.add("ci", ["read"])
    code, out, err = keys(*args)
    assert (code, out) == (2, "")
    assert words in err
    assert "\x1b" not in err
    assert len(store.keys()) == 1


def test_keys_cannot_be_stored_in_memory(keys, folder):
    (folder / "hookline.toml").write_text('[server]\nkeys = ":memory:"\n')
    assert "path of a file" in keys("add", "x", "--scope", "run")[2]


def test_decisions_are_shown_from_an_audit_log(in_process, tmp_path):
    from hookline.stores.audit.format import encode_type
    from hookline.stores.audit.log import AuditLog
    from hookline.stores.audit.records import AuthRecord

    log = AuditLog(tmp_path / "a.jsonl")
    kind = encode_type("auth", b'"correlation_id":"c1"')
    log.put_short(time.time(), kind, AuthRecord("granted", "", "k1", "ci", "run", "POST", "/runs", "192.0.2.1"))
    log.put_short(
        time.time(), kind, AuthRecord("denied", "no key was given", "", "", "run", "POST", "/runs", "192.0.2.1")
    )
    log.close()
    _, out, _ = in_process("audit", "show", str(tmp_path / "a.jsonl"), "--type", "auth")
    assert "granted: ci · POST /runs · needs run · from 192.0.2.1" in out
    assert "denied: nobody, no key was given · POST /runs" in out
    assert in_process("audit", "verify", str(tmp_path / "a.jsonl"))[0] == 0
