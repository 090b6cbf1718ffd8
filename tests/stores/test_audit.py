"""AuditLog: chained records, shared by threads and processes, with rotation and a count of lost records."""

import asyncio
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline._base.own_files import protection_of
from hookline.stores import AuditError, AuditLog, StoreError, verify_audit
from hookline.stores.audit import file as audit_file
from hookline.stores.audit import format as audit_format
from hookline.stores.audit import log as audit_log
from hookline.stores.audit.format import START, find_end, line_hash, parse_head
from hookline.stores.audit.keys import make_keys
from hookline.stores.audit.records import LostRecord
from tests.properties import examples

from ..waiting import block_until

posix = pytest.mark.skipif(os.name == "nt", reason="not on Windows")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "logs" / "audit.jsonl"


def lines(path):
    return path.read_bytes().split(b"\n")[:-1]


def records(path):
    return [json.loads(line) for line in lines(path)]


def write(path, count=3, **options):
    log = AuditLog(path, **options)
    for n in range(count):
        log.record("test", n=n)
    log.close()
    return log


def test_records_are_numbered_from_one_and_each_has_the_hash_of_the_line_before(path):
    write(path)
    raw, read = lines(path), records(path)
    assert [record["seq"] for record in read] == [1, 2, 3, 4]
    assert [record["type"] for record in read] == ["open", "test", "test", "test"]
    assert [record["prev"] for record in read] == [START, *map(line_hash, raw[:-1])]
    assert list(read[1]) == ["v", "seq", "time", "type", "n", "prev"]


def test_the_first_record_of_a_process_identifies_the_process(path):
    write(path)
    first = records(path)[0]
    assert (first["pid"], first["file"], first["key"], first["torn"]) == (os.getpid(), 1, "", 0)


def test_a_restart_continues_the_chain(path):
    for _ in range(3):
        write(path, 2)
    assert [r["seq"] for r in records(path)] == list(range(1, 10))
    assert [r["type"] for r in records(path)].count("open") == 3
    assert verify_audit(path).ok


def test_a_record_added_after_close_is_written(path):
    log = write(path, 1)
    log.record("test", n=2)
    log.close()
    assert [r.get("n") for r in records(path)] == [None, 0, 2]
    assert verify_audit(path).ok


@posix
def test_file_folder_and_checkpoint_are_readable_by_their_owner_only(path):
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((path.parent / "audit.jsonl.head").stat().st_mode) == 0o600


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029", "\x1c", "\x0b", "\r", "\n", "\ud800", "\0"])
def test_characters_that_some_readers_treat_as_line_ends_are_escaped(path, mark):
    log = AuditLog(path)
    log.record("test", text=f"a{mark}b")
    log.close()
    assert len(path.read_bytes().decode().splitlines()) == 2
    assert records(path)[1]["text"] == f"a{mark}b".encode("utf-8", "replace").decode()


TEXTS = st.text(st.characters(codec=None, max_codepoint=0x2100) | st.characters(categories=["Cs"]), max_size=8)


@given(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS, max_size=2) | st.none(), max_size=3))
@settings(max_examples=examples(60), deadline=None)
def test_any_json_becomes_one_line_of_json(fields):
    body = audit_format.encode_record(1.5, audit_format.encode_type("test"), fields)
    line = b'{"v":1,%b}' % body
    assert b"\n" not in line
    assert len(line.decode().splitlines()) == 1
    assert json.loads(line)["time"] == "1970-01-01T00:00:01.500Z" or "time" in fields


@pytest.mark.parametrize("at", [1e18, -1e18, float("nan"), float("inf"), -1.5, 0.0, 253402300800.0])
def test_a_time_outside_the_calendar_loses_no_record(at):
    assert len(audit_format.timestamp(at)) == len("2026-11-15T10:00:00.123Z")


def test_long_names_are_truncated_and_too_long_records_are_replaced_by_their_size(path, monkeypatch):
    log = AuditLog(path)
    log.record("test", name="x" * 1_000_000, many=["y" * 1000] * 5000)
    monkeypatch.setattr(audit_format, "_LONGEST", 100)
    log.record("test", name="x" * 1_000_000)
    log.close()
    assert len(records(path)[1]["name"]) < 300
    assert records(path)[1]["name"].endswith("…(+999744)")
    assert len(records(path)[1]["many"]) == 1000
    assert records(path)[2]["too_long"] > 100


@pytest.mark.parametrize("fields", [{"seq": 1}, {"prev": "x"}, {"sig": ""}, {"odd": object()}, {"odd": {1j: 2}}])
def test_reserved_fields_and_values_that_are_not_json_are_refused(path, fields):
    with pytest.raises(StoreError):
        AuditLog(path).record("test", **fields)


@pytest.mark.parametrize("type", ["open", "lost", "rotate", "prune", "checkpoint", "", 'a"b', "a b"])
def test_reserved_types_and_types_that_are_not_identifiers_are_refused(path, type):
    with pytest.raises(StoreError):
        AuditLog(path).record(type)


def test_invalid_options_are_refused_at_once(path, tmp_path):
    for bad in [
        {"path": None},
        {"path": tmp_path},
        {"fsync": "often"},
        {"max_bytes": 10},
        {"keep_files": 0},
        {"sign": tmp_path / "no"},
    ]:
        with pytest.raises(StoreError):
            AuditLog(**{"path": path, **bad})
    with pytest.raises(TypeError):
        AuditLog(5)
    assert not path.parent.exists()


# Threads, processes, forks.

WRITER = """
import sys, threading
from hookline.stores import AuditLog
logs = [AuditLog(sys.argv[1], fsync="never"), AuditLog(sys.argv[2], fsync="never", max_bytes=30_000)]
def work():
    for n in range(200):
        for log in logs:
            log.record("test", n=n, pad="x" * 100)
            if n % 20 == 0:
                log.flush()
threads = [threading.Thread(target=work) for _ in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
assert all(log.flush(60) and not log.lost for log in logs), [log.problem for log in logs]
"""


def test_threads_and_processes_share_one_log_even_during_rotation(path):
    rotated = path.with_name("rotated.jsonl")
    others = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(rotated)]) for _ in range(3)]
    assert [other.wait(60) for other in others] == [0, 0, 0]
    for report in (verify_audit(path), verify_audit(rotated)):
        assert (report.findings, report.warnings) == ((), ())
        written = [r for file in report.files for r in records_of_type(Path(file), "test")]
        assert len(written) == 3 * 2 * 200
    assert len(verify_audit(path).files) == 1
    assert len(report.files) > 5


@posix
def test_a_forked_process_continues_the_chain_of_its_parent(path):
    log = AuditLog(path)
    log.record("test", who="parent")
    log.flush()
    child = os.fork()
    if not child:
        try:
            log.record("test", who="child")
            log.close(10)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    log.record("test", who="parent")
    log.close()
    assert [r.get("who") for r in records(path)] == [None, "parent", None, "child", "parent"]
    assert verify_audit(path).ok


@posix
def test_a_forked_process_does_not_report_losses_of_its_parent(path):
    log = AuditLog(path)
    log.count_lost(3, "the disk was full")
    with log._counting:  # another thread is counting at this moment
        child = os.fork()
        if not child:
            try:
                signal.alarm(10)
                log.record("test", who="child")
                log.count_lost(0, "none")
                log.close(5)
            finally:
                os._exit(0)
    os.waitpid(child, 0)
    assert [r["type"] for r in records(path)] == ["open", "test"]


KILLED = """
import os, random, signal, sys, time
from hookline.stores import AuditLog, verify_audit

path, max_bytes = sys.argv[1], int(sys.argv[2])

def write(begun):
    log, n = AuditLog(path, fsync="never", max_bytes=max_bytes or None), 0
    while True:
        n += 1
        log.record("test", n=n, pad="x" * (n % 3000))
        if n == 1:
            os.write(begun, b"!")
        if n % 100 == 0:
            log.flush()

dice = random.Random(max_bytes)
for _ in range(8):
    reader, begun = os.pipe()
    writer = os.fork()  # this process has one thread, and no log
    if not writer:
        write(begun)
    os.read(reader, 1)
    time.sleep(dice.uniform(0.0, 0.1))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    if os.path.exists(path) and os.path.getsize(path):
        assert verify_audit(path).findings == (), verify_audit(path).findings
"""


@pytest.mark.slow
@posix
@pytest.mark.parametrize("max_bytes", [0, 100_000])
def test_a_log_whose_writers_were_killed_verifies_and_can_be_continued(path, max_bytes):
    subprocess.run([sys.executable, "-c", KILLED, str(path), str(max_bytes)], check=True)
    write(path)
    report = verify_audit(path)
    assert report.findings == ()
    assert json.loads(lines(path)[-1])["n"] == 2  # a line before it may be incomplete


@pytest.mark.parametrize("cut", [1, 2, 10, 150])
def test_an_incomplete_line_is_kept_and_the_next_record_reports_its_size(path, cut):
    write(path)
    raw = path.read_bytes()
    path.write_bytes(raw[:-cut])
    (path.parent / "audit.jsonl.head").unlink()
    write(path, 1)
    report = verify_audit(path)
    assert report.findings == ()
    assert path.read_bytes().startswith(raw[:-cut])
    if cut > 1:  # a line that lacks only its line end is complete
        assert [w.kind for w in report.warnings] == ["torn", "unproven"]
        assert records_of_type(path, "open")[-1]["torn"] > 0


def records_of_type(path, type):
    found = []
    for line in lines(path):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("type") == type:
            found.append(record)
    return found


def test_a_log_can_be_continued_after_two_crashes_in_a_row(path):
    write(path)
    with open(path, "ab") as file:
        file.write(b'{"v":1,"se\n{"v":1,"seq":5,"ti')
    write(path, 1)
    assert verify_audit(path).findings == ()


@given(st.binary(max_size=300), st.integers(1, 3))
@settings(max_examples=examples(40), deadline=None)
def test_a_log_can_be_continued_in_any_file(tmp_path_factory, junk, count):
    path = tmp_path_factory.mktemp("junk") / "audit.jsonl"
    path.write_bytes(junk)
    log = write(path, count, fsync="never")
    assert log.lost == 0
    assert path.read_bytes().startswith(junk)
    assert len(records_of_type(path, "test")) == count


@given(st.lists(st.sampled_from(["record", "junk", "blank"]), max_size=6), st.booleans(), st.integers(1, 200))
@settings(max_examples=examples(60), deadline=None)
def test_the_last_record_is_found_by_reading_backwards_in_steps_of_any_size(tmp_path_factory, parts, ended, step):
    made, last = [], None
    for number, part in enumerate(parts, 1):
        if part == "record":
            last = b'{"v":1,"seq":%d,"time":"","type":"x","prev":"","pad":"%b"}' % (number, b"p" * 90)
        made.append(last if part == "record" else b"" if part == "blank" else b'{"seq":9')
    data = b"\n".join(made) + (b"\n" if made and ended else b"")
    path = tmp_path_factory.mktemp("end") / "file"
    path.write_bytes(data)
    audit_lines = find_end.__globals__
    was = audit_lines["_TAIL"]
    audit_lines["_TAIL"] = step
    try:
        with open(path, "rb") as file:
            end = find_end(file.fileno(), len(data))
    finally:
        audit_lines["_TAIL"] = was
    assert end.hash == (START if last is None else line_hash(last))


# Files that were truncated or moved meanwhile.


def test_a_running_process_does_not_hide_that_records_were_cut_off(path):
    log = AuditLog(path)
    for n in range(5):
        log.record("test", n=n)
    log.flush()
    path.write_bytes(b"".join(line + b"\n" for line in lines(path)[:3]))
    log.record("test", n=9)
    log.close()
    assert [f.kind for f in verify_audit(path).findings] == ["missing"]


def test_a_process_that_starts_later_does_not_hide_that_records_were_cut_off(path):
    write(path, 5)
    path.write_bytes(b"".join(line + b"\n" for line in lines(path)[:3]))
    write(path, 1)
    assert "missing" in [f.kind for f in verify_audit(path).findings]


def test_a_log_that_was_moved_away_continues_in_a_new_file(path):
    log = AuditLog(path)
    log.record("test")
    log.flush()
    path.rename(path.with_name("old"))
    log.record("test")
    log.close()
    assert [r["seq"] for r in records(path)] == [3, 4]
    assert verify_audit(path.with_name("old"), path, checkpoint=path.with_name("audit.jsonl.head")).ok
    assert [f.kind for f in verify_audit(path).findings] == ["missing"]
    assert verify_audit(path, partial=True).ok


# Rotation, checkpoints, signatures.


def test_a_full_file_is_renamed_and_the_chain_continues_in_the_next(path):
    for _ in range(3):
        write(path, 30, max_bytes=5000)
    report = verify_audit(path)
    assert report.findings == ()
    assert [os.path.basename(file) for file in report.files[:2]] == ["audit-000001.jsonl", "audit-000002.jsonl"]
    assert all(os.path.getsize(file) <= 5600 for file in report.files)
    first = records(path.with_name("audit-000001.jsonl"))
    second = records(path.with_name("audit-000002.jsonl"))
    assert (first[-1]["type"], first[-1]["file"], first[-1]["next"]) == (
        "rotate",
        "audit-000001.jsonl",
        "audit-000002.jsonl",
    )
    assert (second[0]["type"], second[0]["file"], second[0]["seq"]) == ("open", 2, first[-1]["seq"] + 1)


def test_a_log_keeps_only_its_last_files_and_records_what_it_deletes(path):
    for _ in range(4):
        write(path, 60, max_bytes=5000, keep_files=2)
    report = verify_audit(path)
    assert report.ok, report.findings
    assert (len(report.files), report.first > 1) == (3, True)
    assert [w.kind for w in report.warnings] == ["pruned"]
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 3 * 5000 + 1000
    pruned = [record for file in report.files for record in records_of_type(Path(file), "prune")]
    assert pruned[-1]["last"] == report.first - 1


def test_a_deleted_file_that_no_record_explains_is_a_finding(path):
    write(path, 200, max_bytes=5000, keep_files=4)
    first, *_ = [file for file in sorted(path.parent.iterdir()) if "-0000" in file.name]
    first.unlink()
    report = verify_audit(path)
    assert [finding.kind for finding in report.findings] == ["missing"]
    assert verify_audit(path, partial=True).ok


def test_a_record_larger_than_max_bytes_gets_a_file_of_its_own(path):
    log = AuditLog(path, max_bytes=4096)
    for _ in range(3):
        log.record("test", many=["x" * 200] * 50)
    log.close()
    assert verify_audit(path).findings == ()
    assert len(verify_audit(path).files) == 3


@posix
def test_a_file_that_cannot_be_renamed_keeps_growing(path, monkeypatch, caplog):
    monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no")))
    log = write(path, 60, max_bytes=5000)
    assert log.lost == 0
    assert caplog.text.count("cannot be renamed") == 1
    assert verify_audit(path).findings == ()


def test_closing_the_log_updates_the_checkpoint(path, tmp_path):
    heads = []
    elsewhere = tmp_path / "other" / "head"
    write(path, 10, checkpoint=elsewhere, on_checkpoint=heads.append)
    head = parse_head(elsewhere.read_bytes())
    assert (head.seq, head.hash) == (11, line_hash(lines(path)[-1]))
    assert heads[-1] == head
    assert not path.with_name("audit.jsonl.head").exists()


def test_the_checkpoint_is_updated_when_the_log_is_idle(path, monkeypatch):
    monkeypatch.setattr("hookline._base.background_writer.IDLE_SECONDS", 0.05)
    log = AuditLog(path)
    log.record("test")
    log.flush()
    log.record("test")
    log.flush()
    block_until(lambda: parse_head(path.with_name("audit.jsonl.head").read_bytes()).seq == 3)


def test_a_checkpoint_that_cannot_be_written_is_logged_and_the_log_continues(path, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    log = write(path, checkpoint=tmp_path / "file" / "head", checkpoint_every=1)
    assert log.lost == 0
    assert caplog.text.count("cannot write the checkpoint") == 1
    write(path.with_name("b.jsonl"), on_checkpoint=lambda head: 1 / 0)
    assert "on_checkpoint" in caplog.text


def test_every_line_and_the_checkpoint_are_signed(path, tmp_path):
    private, public, key = make_keys(tmp_path / "key")
    write(path, sign=private)
    report = verify_audit(path, key=public)
    assert (report.findings, report.warnings, report.signed, report.checked) == ((), (), 4, True)
    assert records(path)[0]["key"] == key
    assert list(records(path)[1])[-2:] == ["prev", "sig"]


@posix
def test_a_private_key_is_readable_by_its_owner_only_and_never_overwritten(tmp_path):
    private, _, _ = make_keys(tmp_path / "key")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    with pytest.raises(StoreError, match="exists already"):
        make_keys(tmp_path / "key")


@pytest.mark.parametrize("junk", [b"", b"junk", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_without_a_key_is_an_error(path, tmp_path, junk):
    (tmp_path / "key").write_bytes(junk)
    with pytest.raises(StoreError, match="key"):
        AuditLog(path, sign=tmp_path / "key")
    write(path)
    with pytest.raises(StoreError, match="key"):
        verify_audit(path, key=tmp_path / "key")


# Write errors.


@posix
def test_a_full_disk_is_logged_once_and_blocks_no_caller(caplog):
    log = AuditLog("/dev/full")
    for n in range(3):
        log.record("test", n=n)
        assert log.flush(10)
    assert (log.lost, log.is_working) == (3, False)
    assert "No space left" in log.problem
    assert caplog.text.count("are being lost") == 1


LIMITED = """
import resource, sys
from hookline.stores import AuditLog, verify_audit
path = sys.argv[1]
log = AuditLog(path)
for n in range(5):
    log.record("test", n=n)
log.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
for n in range(5, 20):
    log.record("test", n=n)
log.flush()
lost = log.lost
assert 0 < lost < 15, lost
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.record("test", n=99)
log.close()
print(lost)
"""


@posix
def test_after_a_full_disk_the_log_continues_with_the_number_of_lost_records(path):
    command = [sys.executable, "-c", LIMITED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lost = int(done.stdout)
    report = verify_audit(path)
    assert report.findings == ()
    assert sorted(w.kind for w in report.warnings) in (["lost", "torn"], ["lost"])
    (found,) = records_of_type(path, "lost")
    assert found["count"] == lost
    written = [r["n"] for r in records_of_type(path, "test")]
    assert written == [*range(20 - lost), 99]
    assert "are being lost" in done.stderr
    assert "can be written again" in done.stderr


@given(
    cuts=st.lists(st.none() | st.integers(0, 900), min_size=1, max_size=8),
    size=st.integers(1, 4),
    max_bytes=st.sampled_from([None, 4096]),
)
@settings(max_examples=examples(50), deadline=None)
def test_after_an_interrupted_write_every_record_is_written_or_counted_and_the_log_verifies(
    tmp_path_factory, cuts, size, max_bytes
):
    path, real, faults = tmp_path_factory.mktemp("faults") / "audit.jsonl", audit_file._write_all, list(cuts)

    def write_some(fd, data):
        cut = faults.pop(0) if faults else None
        if cut is None or cut >= len(data):
            return real(fd, data)
        return real(fd, data[:cut])[0], OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_file, "_write_all", write_some)
        log = AuditLog(path, fsync="never", max_bytes=max_bytes)
        for round in range(len(cuts) + 2):
            for n in range(size):
                log.record("test", n=round * size + n, pad="x" * 150)
            log.flush()
        log.close()
    report = verify_audit(path)
    assert report.findings == ()
    files = [Path(file) for file in report.files]
    there = [r["n"] for file in files for r in records_of_type(file, "test")]
    found = sum(r["count"] for file in files for r in records_of_type(file, "lost"))
    assert there == sorted(set(there))
    assert (len(there) + log.lost, found) == ((len(cuts) + 2) * size, log.lost)


def test_a_record_that_cannot_be_encoded_is_counted_and_the_others_are_written(path):
    log = AuditLog(path)
    for count in (1, object(), 2):
        log.put_short(1.5, audit_format.encode_type("test"), LostRecord(count, "x"))
    log.flush(10)
    found = [(r["type"], r.get("count")) for r in records(path)]
    assert found == [("open", None), ("lost", 1), ("test", 1), ("test", 2)]
    assert log.lost == 1


def test_a_deleted_folder_is_created_again(path):
    log = AuditLog(path)
    log.record("test")
    log.flush()
    for each in path.parent.iterdir():
        each.unlink()
    path.parent.rmdir()
    log.record("test")
    log.close()
    assert (log.lost, [r["seq"] for r in records(path)]) == (0, [3, 4])


def test_a_file_in_place_of_the_folder_is_logged_and_writing_starts_when_it_is_gone(tmp_path, caplog):
    (tmp_path / "file").write_text("x")
    log = AuditLog(tmp_path / "file" / "audit.jsonl")
    log.record("test", n=1)
    log.flush()
    assert (log.lost, log.is_working) == (1, False)
    (tmp_path / "file").unlink()
    log.record("test", n=2)
    log.close()
    assert [r["type"] for r in records(tmp_path / "file" / "audit.jsonl")] == ["open", "lost", "test"]
    assert "can be written again" in caplog.text


@posix
def test_a_pipe_gets_the_records_and_a_pipe_without_a_reader_blocks_no_caller(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_file, "STALL_SECONDS", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    log = AuditLog(pipe)
    log.record("test", n=0)
    assert log.flush(10)
    assert log.lost == 1
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log.record("test", n=1)
    assert log.flush(10)
    assert [json.loads(line)["type"] for line in os.read(reader, 1 << 16).splitlines()] == ["open", "lost", "test"]
    for _ in range(40):
        log.record("test", many=["x" * 200] * 50)
    assert log.flush(10)
    assert log.lost > 1
    os.close(reader)
    log.record("test", n=1)
    assert log.flush(10)
    assert log.is_working is False


def test_the_queue_is_limited_and_dropped_records_are_counted(path, monkeypatch):
    monkeypatch.setattr(audit_log, "MAX_QUEUED_BYTES", 2000)
    log, gate = AuditLog(path), threading.Event()
    log._background._write, write_all = lambda items: gate.wait(10) and write_all(items), log._background._write
    for n in range(100):
        log.record("test", n=n)
    gate.set()
    log.record("test", n=100)
    log.close()
    assert 50 < log.lost < 100
    assert log.lost + len(records_of_type(path, "test")) == 101
    assert log.lost == sum(r["count"] for r in records_of_type(path, "lost"))
    assert verify_audit(path).findings == ()


async def test_flush_async_waits_until_all_is_written_or_the_timeout_is_over(path, monkeypatch):
    log = AuditLog(path)
    log.record("test")
    assert await log.flush_async(10)
    assert len(records(path)) == 2
    gate = threading.Event()
    log._background._write = lambda items: gate.wait(10)
    log.record("test")
    assert not await log.flush_async(0.01)
    gate.set()


def test_a_closed_event_loop_does_not_disturb_the_writer(path):
    log, gate = AuditLog(path), threading.Event()
    write_all = log._background._write
    log._background._write = lambda items: gate.wait(10) and write_all(items)
    log.record("test")

    async def leave():
        await log.flush_async(0.01)

    asyncio.run(leave())
    gate.set()
    log.record("test")
    log.close()
    assert len(records_of_type(path, "test")) == 2


@pytest.mark.parametrize("fsync", ["never", "batch", "always"])
def test_records_are_synced_to_disk_as_often_as_fsync_says(path, monkeypatch, fsync):
    synced = []
    monkeypatch.setattr(audit_file, "_sync", synced.append)
    log = AuditLog(path, fsync=fsync)
    gate = threading.Event()
    write_all = log._background._write
    log._background._write = lambda items: gate.wait(10) and write_all(items)
    for n in range(10):
        log.record("test", n=n)
    gate.set()
    log.flush()
    assert len(synced) in {"never": (0,), "batch": (1, 2), "always": (10,)}[fsync]


def test_a_failed_sync_is_counted_and_logged(path, monkeypatch):
    def broken(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(audit_file, "_sync", broken)
    log = write(path)
    assert log.is_working is False
    assert "Input/output" in log.problem


# The logger.


def test_a_logger_gets_every_record_at_info_as_json_and_as_a_dict(caplog):
    with caplog.at_level(logging.INFO, "my.audit"):
        log = AuditLog(None, logger="my.audit")
        log.record("auth", user="ann")
        log.close()
    (found,) = [r for r in caplog.records if r.name == "my.audit"]
    assert found.levelno == logging.INFO
    assert json.loads(found.getMessage()) == found.audit
    assert (found.audit["type"], found.audit["user"]) == ("auth", "ann")


def test_with_a_file_the_logger_gets_checkpoints_too(path, caplog):
    with caplog.at_level(logging.INFO, "my.audit"):
        write(path, 3, logger="my.audit")
    found = [r.audit for r in caplog.records if r.name == "my.audit"]
    assert [r["type"] for r in found if r["type"] != "checkpoint"] == ["test"] * 3
    last = [r for r in found if r["type"] == "checkpoint"][-1]
    assert (last["seq"], last["hash"]) == (4, line_hash(lines(path)[-1]))


def test_the_end_of_the_process_writes_all_records(path):
    code = "import sys; from hookline.stores import AuditLog; AuditLog(sys.argv[1]).record('test')"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert [r["type"] for r in records(path)] == ["open", "test"]
    assert parse_head(path.with_name("audit.jsonl.head").read_bytes()).seq == 2


def test_an_audit_error_is_a_store_error():
    assert issubclass(AuditError, StoreError)


def test_tools_may_not_write_the_log_its_checkpoint_or_its_archives(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl", checkpoint=tmp_path / "far" / "end.txt", max_bytes=4096)
    files = [tmp_path / "audit.jsonl", tmp_path / "audit-000001.jsonl", tmp_path / "far" / "end.txt"]
    assert [protection_of(str(file)) for file in files] == ["Hookline's audit log"] * 3
    del log
    beside = AuditLog(tmp_path / "audit.jsonl")
    assert protection_of(str(tmp_path / "audit.jsonl.head")) == "Hookline's audit log"
    assert protection_of(str(tmp_path / "audit.txt")) is None
    del beside
