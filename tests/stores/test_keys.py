"""KeyStore: only hashes are stored, and a revoked key is rejected by all processes."""

import hashlib
import os
import re
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.stores import keys as module
from hookline.stores.errors import StoreError
from hookline.stores.keys import RIGHTS, KeyStore
from tests.environment import with_source

from ..waiting import block_until

ROOT = Path(__file__).parents[2]
MEMORY = KeyStore(":memory:")
MEMORY.add("ci", RIGHTS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.db"


@pytest.fixture
def now():
    return [1_800_000_000.0]


@pytest.fixture
def store(path, now):
    store = KeyStore(path, clock=lambda: now[0])
    yield store
    store.close()


def every_byte(folder):
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


@pytest.mark.sqlite
def test_a_key_is_found_by_its_secret_and_only_a_hash_is_stored(store, path, now):
    row, key = store.add("ci", ["run", "read"], metadata={"user_role": "customer"})
    assert re.fullmatch(r"hl_[a-z0-9]{8}_[A-Za-z0-9]{43}", key)
    assert store.find(key) == row
    assert (row.name, row.scopes, row.metadata, row.created) == (
        "ci",
        ("read", "run"),
        {"user_role": "customer"},
        now[0],
    )
    secret = key.split("_")[2]
    store.close()
    assert secret.encode() not in every_byte(path.parent)
    assert hashlib.sha256(secret.encode()).digest() in every_byte(path.parent)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_all_keys_are_different(store):
    made = [store.add(f"k{n}", ["read"]) for n in range(20)]
    assert len({row.id for row, _ in made}) == len({key[12:] for _, key in made}) == 20
    assert [store.find(key).name for _, key in made] == [f"k{n}" for n in range(20)]


def test_a_secret_with_any_difference_is_not_found(store):
    row, key = store.add("ci", RIGHTS)
    other, second = store.add("other", RIGHTS)
    secret = key.split("_")[2]
    wrong = [
        "",
        "hl",
        "hl_",
        "hl__",
        f"hl_{row.id}",
        f"hl_{row.id}_",
        f"hl__{secret}",
        f"hl_{other.id}_{secret}",
        key[:-1],
        f"{key}x",
        f"{key}\n",
        f" {key}",
        key.upper(),
        f"HL_{row.id}_{secret}",
        f"x{key}",
        secret,
        f"{key}_{secret}",
        f"hl_{row.id}_\ud800",
        f"hl_\0_{secret}",
        "hl_" * 1000,
        f"hl_{row.id}_{second.split('_')[2]}",
    ]
    assert [text for text in wrong if store.find(text) is not None] == []


@given(st.text() | st.text(alphabet="hl_abc0").map(lambda text: f"hl_{text}"))
def test_no_other_text_is_accepted_as_a_key(text):
    assert MEMORY.find(text) is None


def test_an_unknown_id_is_hashed_and_compared_like_a_known_one(store, monkeypatch):
    row, _ = store.add("ci", RIGHTS)
    store.refresh()
    compared = []
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or a == b)
    for text in (f"hl_{row.id}_x", "hl_nobody00_x", "x", ""):
        assert store.lookup(text) is None
    assert compared == [(32, 32)] * 4


def test_a_hash_of_zeros_matches_no_key(store, monkeypatch):
    store.add("ci", RIGHTS)
    monkeypatch.setattr(module, "_hash", lambda secret: bytes(32))
    assert store.find("hl_nobody00_x") is None


def test_an_expired_key_can_be_looked_up_but_is_not_valid(store, now):
    row, key = store.add("ci", ["read"], expires=now[0] + 60)
    assert store.find(key) == row
    now[0] += 60
    assert store.find(key) is None
    assert (store.lookup(key), store.state(row)) == (row, "expired")


def test_a_revoked_key_stays_in_the_list_and_its_name_is_free_again(store, now):
    row, key = store.add("ci", ["read"])
    revoked_key = store.revoke("ci")
    assert (revoked_key.id, revoked_key.revoked) == (row.id, now[0])
    assert store.find(key) is None
    again, other = store.add("ci", ["run"])
    assert store.find(other) == again
    listed = store.keys()
    assert [each.id for each in listed] == [row.id, again.id]
    assert [store.state(each) for each in listed] == ["revoked", "active"]
    assert store.revoke(again.id).id == again.id


def test_invalid_arguments_are_refused_with_advice(store, now):
    store.add("ci", ["read"], expires=now[0] + 5)
    for call, words in (
        (lambda: store.add("ci", ["read"]), "already a key 'ci': revoke it first"),
        (lambda: store.add("x", ["reed"]), "Did you mean 'read'"),
        (lambda: store.add("x", []), "needs at least one right"),
        (lambda: store.add("", ["read"]), "name of 1 to 64"),
        (lambda: store.add("a\nb", ["read"]), "name of 1 to 64"),
        (lambda: store.add(" a", ["read"]), "name of 1 to 64"),
        (lambda: store.add("x" * 65, ["read"]), "name of 1 to 64"),
        (lambda: store.add("x", ["read"], expires=now[0]), "already be expired"),
        (lambda: store.add("x", ["read"], expires=float("nan")), "already be expired"),
        (lambda: store.add("x", ["read"], metadata={"a": object()}), "JSON"),
        (lambda: store.add("x", ["read"], metadata={"a": "x" * 5000}), "4,096 bytes"),
        (lambda: store.revoke("cj"), "Did you mean 'ci'"),
    ):
        with pytest.raises(StoreError, match=words):
            call()
    now[0] += 10
    with pytest.raises(StoreError, match="an expired key 'ci': revoke it first"):
        store.add("ci", ["read"])
    store.revoke("ci")
    with pytest.raises(StoreError, match="already revoked"):
        store.revoke("ci")
    (left,) = store.keys()
    assert left.name == "ci"


def test_reading_does_not_create_the_file(store, path):
    assert store.keys() == []
    assert store.find("hl_aaaaaaaa_x") is None
    with pytest.raises(StoreError, match="no key"):
        store.revoke("ci")
    assert not path.exists()


REVOKE = """
import sys
from hookline.stores.keys import KeyStore
store = KeyStore(sys.argv[1])
print(store.add("second", ["run"])[1])
store.revoke("first")
store.close()
"""


def test_keys_that_another_process_creates_or_revokes_take_effect(store, path):
    _, first = store.add("first", ["read"])
    assert store.find(first)
    env = with_source()
    done = subprocess.run(
        [sys.executable, "-c", REVOKE, str(path)], env=env, capture_output=True, text=True, check=True
    )
    block_until(lambda: store.find(first) is None)
    assert store.find(done.stdout.strip()).name == "second"


def test_the_file_is_read_only_if_the_cache_is_stale_and_keys_only_if_they_changed(store, path, monkeypatch):
    _, key = store.add("ci", ["read"])
    assert store.find(key)
    monkeypatch.setattr(module, "CACHE_SECONDS", 3600.0)
    store._until = 0.0
    store.refresh()
    store.close()  # reading would fail
    for _ in range(100):
        assert store.find(key)
    again = KeyStore(path)
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    assert again.find(key)
    monkeypatch.setattr(module, "_row", None)  # and so would decoding a row
    assert again.find(key)
    again.close()


def test_last_used_is_written_at_most_once_a_minute(store, now):
    row, _ = store.add("ci", ["read"])
    store.refresh()
    stamp = store._stamp

    def used():
        store.mark_used(row)
        assert store.flush(30)
        return store.keys()[0].last_used

    assert [used(), used()] == [now[0], now[0]]
    first = now[0]
    now[0] += 59
    assert used() == first
    now[0] += 1
    assert used() == now[0]
    store._until = 0.0
    store.refresh()
    assert store._stamp == stamp  # other servers need not read all keys again


def test_a_key_works_while_last_used_cannot_be_written(store, path, monkeypatch):
    monkeypatch.setattr("hookline.stores.sqlite.BUSY_SECONDS", 0.05)
    row, key = store.add("ci", ["read"])
    store.refresh()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert store.find(key) == row
    store.mark_used(row)
    assert store.flush(30)
    assert store.find(key) == row
    writer.execute("ROLLBACK")
    writer.close()


@pytest.mark.sqlite
def test_a_deleted_file_is_an_error_until_it_is_restored(store, path, monkeypatch):
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    row, key = store.add("ci", ["read"])
    assert store.find(key) == row
    assert store.flush(30)
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").rename(f"{path}.away{end}")
    store._marked.clear()
    store.mark_used(row)
    assert store.flush(30)
    for _ in range(2):
        with pytest.raises(StoreError, match="was deleted"):
            store.find(key)
    assert not path.exists()
    for end in ("", "-wal", "-shm"):
        Path(f"{path}.away{end}").rename(f"{path}{end}")
    assert store.find(key).id == row.id


@pytest.mark.sqlite
def test_updating_last_used_does_not_recreate_a_deleted_file(store, path, now):
    _, key = store.add("ci", ["read"])
    store.find(key)
    store.close()
    again = KeyStore(path, clock=lambda: now[0])
    row = again.find(key)
    path.rename(f"{path}.away")
    now[0] += 60
    again.mark_used(row)
    assert again.flush(30)
    assert not path.exists()
    again.close()


@pytest.mark.sqlite
def test_a_replaced_file_is_read(store, path, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    _, key = store.add("ci", ["read"])
    assert store.find(key)
    other = KeyStore(tmp_path / "other.db")
    row, second = other.add("other", ["read"])
    other.close()
    store.flush()
    store._marking.close()
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    (tmp_path / "other.db").replace(path)
    assert store.find(key) is None
    assert store.find(second) == row


@pytest.mark.parametrize(
    "change", ["scopes = x'ff'", "metadata = 'x'", "hash = 'x'", "metadata = '[]'", "expires = 'never'"]
)
@pytest.mark.sqlite
def test_a_damaged_row_is_an_error_for_every_key(store, path, change):
    _, key = store.add("ci", ["read"])
    store.add("other", ["read"])
    db = sqlite3.connect(path)
    db.execute(f"UPDATE keys SET {change} WHERE name = 'other'")
    db.commit()
    db.close()
    store._until = 0.0
    with pytest.raises(StoreError, match="damaged"):
        store.find(key)


@pytest.mark.sqlite
def test_a_row_added_by_hand_is_noticed(store, path, monkeypatch):
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    _, key = store.add("ci", ["read"])
    assert store.find(key)
    db = sqlite3.connect(path)
    db.execute("UPDATE keys SET scopes = 'read admin'")
    db.commit()
    assert store.find(key).scopes == ("read", "admin")
    db.execute("DELETE FROM keys")
    db.commit()
    db.close()
    assert store.find(key) is None
