"""verify_audit: every change of a log is found, and no input makes it fail."""

import os
import shutil

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hookline.stores import AuditLog, StoreError, verify_audit
from hookline.stores.audit.describe import parse_record
from hookline.stores.audit.format import MAX_LINE, line_hash, split_signature
from hookline.stores.audit.keys import make_keys
from hookline.stores.audit.verify import MAX_FINDINGS, log_files
from tests.properties import examples

QUICK = settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path, count=8, **options):
    log = AuditLog(path, fsync="never", **options)
    for n in range(count):
        log.record("test", n=n, text=f"line {n}")
    log.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A plain log, a signed log, a log in several files, and the keys."""
    folder = tmp_path_factory.mktemp("audit")
    private, public, _ = make_keys(folder / "key")
    write(folder / "plain.jsonl")
    write(folder / "signed.jsonl", sign=private)
    write(folder / "many.jsonl", 60, max_bytes=4500)
    other, _, _ = make_keys(folder / "other")
    return folder, public, other


@pytest.fixture
def log(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "copy")
    return tmp_path / "copy"


def copied(path, folder):
    for name in (path.name, f"{path.name}.head"):
        (folder / name).write_bytes((path.parent / name).read_bytes())
    return folder / path.name


def kinds(*paths, **options):
    return [finding.kind for finding in verify_audit(*paths, **options).findings]


def lines(path):
    return path.read_bytes().split(b"\n")[:-1]


def rewrite(path, changed):
    path.write_bytes(b"".join(line + b"\n" for line in changed))


@pytest.mark.parametrize("name", ["plain", "signed", "many"])
def test_an_unchanged_log_has_no_findings(made, name):
    report = verify_audit(made[0] / f"{name}.jsonl", key=made[1] if name == "signed" else None)
    assert (report.findings, report.ok, report.first) == ((), True, 1)
    assert report.last == report.records
    assert report.head == line_hash(lines(made[0] / f"{name}.jsonl")[-1])


def forged(path):
    """Append a record that continues the chain, as a person who can write the file can."""
    last = lines(path)[-1]
    record = msgspec.json.decode(last)
    forged = last.replace(f'"seq":{record["seq"]}'.encode(), f'"seq":{record["seq"] + 1}'.encode())
    forged = forged.replace(record["prev"].encode(), line_hash(last).encode())
    path.write_bytes(path.read_bytes() + forged + b"\n")


def test_records_behind_the_head_of_an_unsigned_log_are_not_proven(log):
    forged(log / "plain.jsonl")
    report = verify_audit(log / "plain.jsonl")
    assert (report.findings, report.end_proven, report.ok) == ((), False, False)
    (warning,) = [each for each in report.warnings if each.kind == "unproven"]
    assert warning.line == report.records
    assert "1 record after the last known head" in warning.text
    proven = f"{report.last}:{report.head}"
    assert verify_audit(log / "plain.jsonl", head=proven).ok


def test_a_checked_signature_proves_a_record_behind_the_head_and_a_forged_one_has_none(log, made):
    whole = lines(log / "signed.jsonl")
    head = f"{len(whole) - 1}:{line_hash(whole[-2])}"
    (log / "signed.jsonl.head").unlink()
    assert verify_audit(log / "signed.jsonl", head=head, key=made[1]).ok
    assert not verify_audit(log / "signed.jsonl", head=head).ok
    forged(log / "signed.jsonl")
    assert "signature" in kinds(log / "signed.jsonl", head=head, key=made[1])


# Every kind of tampering is found.


@pytest.mark.parametrize("name", ["plain", "signed"])
@given(data=st.data())
@QUICK
def test_any_changed_byte_is_found(made, tmp_path_factory, name, data):
    path = copied(made[0] / f"{name}.jsonl", tmp_path_factory.getbasetemp())
    raw = bytearray(path.read_bytes())
    at, new = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 255))
    assume(raw[at] != new)
    raw[at] = new
    path.write_bytes(raw)
    assert not verify_audit(path).ok
    assert not verify_audit(path, key=made[1]).ok


@pytest.mark.parametrize("name", ["plain", "signed"])
@given(data=st.data())
@QUICK
def test_deleted_duplicated_moved_and_inserted_lines_are_found(made, tmp_path_factory, name, data):
    path = copied(made[0] / f"{name}.jsonl", tmp_path_factory.getbasetemp())
    was = lines(path)
    changed, places = list(was), st.integers(0, len(was) - 1)
    for _ in range(data.draw(st.integers(1, 3))):
        at, to = min(data.draw(places), len(changed) - 1), data.draw(places)
        what = data.draw(st.sampled_from(["delete", "double", "move", "swap", "junk", "cut"]))
        if what == "delete" and len(changed) > 1:
            del changed[at]
        elif what == "double":
            changed.insert(to, changed[at])
        elif what == "move":
            changed.insert(to, changed.pop(at))
        elif what == "swap":
            to = min(to, len(changed) - 1)
            changed[at], changed[to] = changed[to], changed[at]
        elif what == "junk":
            changed.insert(
                at, data.draw(st.sampled_from([b"", b"{}", b"x", b"null", was[0].replace(b"open", b"test")]))
            )
        elif what == "cut":
            changed = changed[: max(1, at)]
    assume(changed != was)
    rewrite(path, changed)
    assert not verify_audit(path).ok


@given(st.binary(max_size=400), st.sampled_from(["alone", "before", "after"]))
@QUICK
def test_any_bytes_can_be_verified(made, tmp_path_factory, junk, where):
    path = tmp_path_factory.getbasetemp() / "junk.jsonl"
    raw = (made[0] / "plain.jsonl").read_bytes()
    path.write_bytes({"alone": junk, "before": junk + raw, "after": raw + junk}[where])
    report = verify_audit(path)
    assert report.unchanged or report.findings
    if where == "before" and junk:
        assert not report.ok


@given(st.lists(st.sampled_from(["{", "[", '"', "seq", "9" * 30, "-1", "1e999", ":", ",", "\\ud800", "}", "null"])))
@QUICK
def test_any_json_can_be_verified(made, tmp_path_factory, parts):
    path = tmp_path_factory.getbasetemp() / "json.jsonl"
    path.write_bytes("".join(parts).encode() + b"\n" + b"[" * 100_000 + b"\n")
    assert not verify_audit(path).ok


# Kinds and positions of findings.


def test_an_edited_line_is_reported_with_its_number(log):
    path = log / "plain.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"line 3"', b'"LINE 3"'))
    (finding,) = verify_audit(path).findings
    assert (finding.kind, finding.line) == ("changed", 6)


def test_missing_duplicated_and_moved_lines_are_distinguished(log):
    path, was = log / "plain.jsonl", lines(log / "plain.jsonl")
    rewrite(path, was[:3] + was[5:])
    (finding,) = verify_audit(path).findings
    assert (finding.kind, finding.line, finding.text) == ("missing", 4, "records 4 to 5 are missing before this line")
    rewrite(path, was[:3] + was[2:])
    assert kinds(path) == ["doubled"]
    rewrite(path, [*was[:3], was[4], was[3], *was[5:]])
    assert kinds(path) == ["missing", "order", "missing"]


def test_an_inserted_line_with_a_correct_link_is_found(log):
    path, was = log / "plain.jsonl", lines(log / "plain.jsonl")
    forged = was[4].replace(b'"seq":5', b'"seq":4').replace(was[4][-67:], was[3][-67:])
    rewrite(path, [*was[:3], forged, *was[3:]])
    assert kinds(path)


def test_a_cut_tail_is_found_by_the_checkpoint_and_by_a_head(log):
    path, was = log / "plain.jsonl", lines(log / "plain.jsonl")
    rewrite(path, was[:-2])
    assert kinds(path) == ["cut"]
    (log / "plain.jsonl.head").rename(log / "kept")
    assert kinds(path) == []
    assert [w.kind for w in verify_audit(path).warnings] == ["unproven"]
    assert kinds(path, checkpoint=log / "kept") == ["cut"]
    assert kinds(path, head=line_hash(was[-1])) == ["head"]
    assert kinds(path, head=f"{len(was)}:{line_hash(was[-1])}") == ["cut"]
    assert kinds(path, head=line_hash(was[3])) == []


def test_a_cut_log_without_its_checkpoint_is_not_ok(log):
    path, was = log / "plain.jsonl", lines(log / "plain.jsonl")
    rewrite(path, was[:-2])
    (log / "plain.jsonl.head").unlink()
    report = verify_audit(path)
    assert (report.unchanged, report.end_proven, report.ok) == (True, False, False)
    assert verify_audit(path, head=line_hash(was[-3])).ok


def test_a_program_that_continues_a_cut_log_does_not_hide_the_cut(log):
    path = log / "plain.jsonl"
    rewrite(path, lines(path)[:-2])
    (log / "plain.jsonl.head").unlink()
    for _ in range(2):
        write(path, 3)  # this writes a new checkpoint
    report = verify_audit(path)
    assert (report.unchanged, report.end_proven, report.ok) == (True, False, False)
    assert [(warning.kind, warning.line) for warning in report.warnings] == [("unproven", len(lines(path)) - 7)]


@pytest.mark.parametrize("how", ["removed", "empty", "replaced"])
def test_a_full_file_does_not_prove_that_no_other_one_followed(log, how):
    path = log / "many.jsonl"
    newest = max(log.glob("many-*.jsonl"))
    (log / "many.jsonl.head").unlink()
    path.unlink()
    if how == "empty":
        path.touch()
    elif how == "replaced":
        newest.rename(path)
    report = verify_audit(path)
    assert (report.unchanged, report.end_proven, report.ok) == (True, False, False)


def test_the_last_record_of_a_full_file_proves_its_end(log):
    path = log / "many-000001.jsonl"
    assert verify_audit(path).ok
    rewrite(path, lines(path)[:-1])
    assert not verify_audit(path).end_proven


def test_a_given_head_does_not_replace_the_checkpoint(log):
    head = verify_audit(log / "plain.jsonl").head
    checkpoint = log / "plain.jsonl.head"
    checkpoint.write_bytes(checkpoint.read_bytes().replace(head.encode(), b"0" * 64))
    assert kinds(log / "plain.jsonl", head=f"9:{head}") == ["head"]


def test_a_changed_last_line_is_found_by_the_checkpoint(log):
    path = log / "plain.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"line 7"', b'"LINE 7"'))
    assert kinds(path) == ["head"]


def test_a_rewritten_log_is_found_by_a_head_that_was_kept(log):
    kept = verify_audit(log / "plain.jsonl").head
    for name in ("plain.jsonl", "plain.jsonl.head"):
        (log / name).unlink()
    write(log / "plain.jsonl")
    assert kinds(log / "plain.jsonl") == []
    assert kinds(log / "plain.jsonl", head=kept) == ["head"]


def test_missing_and_swapped_files_are_found(log):
    path = log / "many.jsonl"
    first, second, third = log_files([path])[:3]
    second.rename(log / "away")
    assert kinds(path) == ["missing"]
    third.rename(second)
    (log / "away").rename(third)
    assert set(kinds(path)) >= {"missing", "order"}
    first.unlink()
    assert "missing" in kinds(path)


def test_older_files_may_be_missing_with_partial(log):
    path = log / "many.jsonl"
    log_files([path])[0].unlink()
    assert kinds(path) == ["missing"]
    assert kinds(path, partial=True) == []


def test_several_files_are_read_in_the_order_given(log):
    files = log_files([log / "many.jsonl"])
    assert kinds(*files) == []
    assert kinds(*reversed(files))


# Signatures.


def test_stripped_signatures_are_found_with_the_key_and_without(log, made):
    path = log / "signed.jsonl"
    rewrite(path, [split_signature(line)[0] + b"}" for line in lines(path)])
    for options in ({"key": made[1]}, {}):
        assert set(kinds(path, **options)) >= {"unsigned"}


def test_a_chain_rewritten_without_the_key_is_found(log, made):
    changed, prev = [], b"0" * 64
    for line in lines(log / "signed.jsonl"):
        data, sig = split_signature(line)
        data = data[:-65] + prev + b'"'
        data = data.replace(b"line 3", b"LINE 3")
        changed.append(data + b',"sig":"' + sig + b'"}')
        prev = line_hash(changed[-1]).encode()
    rewrite(log / "signed.jsonl", changed)
    assert "changed" not in kinds(log / "signed.jsonl")
    assert "signature" in kinds(log / "signed.jsonl", key=made[1])


def test_another_key_is_a_finding(log, made):
    report = verify_audit(log / "signed.jsonl", key=made[2])
    assert {"key", "signature"} <= {finding.kind for finding in report.findings}


def test_an_unsigned_log_fails_with_a_key(log, made):
    assert set(kinds(log / "plain.jsonl", key=made[1])) == {"unsigned", "signature"}


def test_a_forged_checkpoint_fails_with_a_key(log, made):
    head = log / "signed.jsonl.head"
    head.write_bytes(head.read_bytes().replace(b'"seq":9', b'"seq":8'))
    assert "signature" in kinds(log / "signed.jsonl", key=made[1])


def test_unverified_signatures_are_a_warning(log):
    assert [w.kind for w in verify_audit(log / "signed.jsonl").warnings] == ["signature"]


# Warnings, limits, invalid arguments.


def test_a_blank_line_before_an_open_record_is_not_an_incomplete_line(log):
    write(log / "plain.jsonl", 1)
    was = lines(log / "plain.jsonl")
    rewrite(log / "plain.jsonl", [*was[:9], b"", *was[9:]])
    assert kinds(log / "plain.jsonl") == ["no record"]


def test_an_incomplete_last_line_is_a_warning(log):
    (log / "plain.jsonl.head").unlink()
    with open(log / "plain.jsonl", "ab") as file:
        file.write(b'{"v":1,"seq":10,"ti')
    report = verify_audit(log / "plain.jsonl")
    assert (report.findings, [w.kind for w in report.warnings]) == ((), ["torn", "unproven"])


FORGED = b'{"v":1,"seq":%d,"time":"2026-11-19T01:00:00.000Z","type":"approval","decision":"approve","by":"boss"}'


@pytest.mark.parametrize("name", ["plain", "signed"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_forged_line_does_not_pass_for_one_that_was_interrupted(log, name, count):
    path = log / f"{name}.jsonl"
    key = log / "key" if name == "signed" else None
    with open(path, "ab") as file:
        file.write(b"\n".join(FORGED % (10 + each) for each in range(count)))
    assert kinds(path) == ["no record"]
    write(path, 1, **({"sign": key} if key else {}))
    assert kinds(path) == ["no record"]
    shown = [parse_record(line) for line in lines(path)]
    assert [each["type"] for each in shown].count("no record") == count
    assert not any(each.get("by") == "boss" for each in shown)


def test_an_incomplete_last_line_is_a_finding_in_an_archive(log):
    with open(log / "many-000001.jsonl", "ab") as file:
        file.write(b"put in\nand more")
    assert kinds(log / "many.jsonl") == ["no record"]


def test_decreasing_times_are_a_warning(tmp_path, monkeypatch):
    times = iter([2e9, 2e9, 1e9, 2e9])
    monkeypatch.setattr("hookline.stores.audit.file.time.time", lambda: next(times, 2e9))
    write(tmp_path / "audit.jsonl", 3)
    report = verify_audit(tmp_path / "audit.jsonl")
    assert report.ok
    assert "time" in [w.kind for w in report.warnings]


def test_a_newer_format_is_a_finding(log):
    path = log / "plain.jsonl"
    rewrite(path, [line.replace(b'{"v":1', b'{"v":2') for line in lines(path)])
    assert "version" in kinds(path)


def test_an_endless_line_is_read_in_bounded_memory(log):
    path = log / "plain.jsonl"
    with open(path, "ab") as file:
        file.write(b"x")
        file.truncate(path.stat().st_size + 3 * MAX_LINE)
    assert [w.kind for w in verify_audit(path).warnings] == ["torn"]


def test_findings_are_limited_and_equal_ones_of_adjacent_lines_are_merged(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"junk\n" * 5000)
    report = verify_audit(path)
    assert [(f.line, f.last) for f in report.findings if f.kind == "no record"] == [(1, 5000)]
    record = b'{"v":1,"seq":%d,"time":"","type":"x","prev":""}\n'
    path.write_bytes(b"".join(record % (n * 2) for n in range(5000, 1, -1)))
    report = verify_audit(path)
    assert len(report.findings) == MAX_FINDINGS
    assert report.more > 3000


def test_progress_is_reported(log):
    seen = []
    verify_audit(log / "many.jsonl", progress=seen.append)
    assert seen[-1] == sum(os.path.getsize(path) for path in log_files([log / "many.jsonl"]))


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n"])
def test_an_empty_file_is_a_finding(tmp_path, content):
    (tmp_path / "audit.jsonl").write_bytes(content)
    assert "empty" in kinds(tmp_path / "audit.jsonl")


def test_invalid_arguments_are_errors(log, tmp_path):
    for paths, options in [
        ((), {}),
        ((tmp_path / "none",), {}),
        ((tmp_path,), {}),
        ((log / "plain.jsonl",), {"head": "abc"}),
        ((log / "plain.jsonl",), {"head": "x:" + "0" * 64}),
        ((log / "plain.jsonl",), {"checkpoint": tmp_path / "none"}),
        ((log / "plain.jsonl",), {"key": tmp_path / "none"}),
    ]:
        with pytest.raises(StoreError):
            verify_audit(*paths, **options)


def test_an_unreadable_checkpoint_is_a_finding(log):
    for junk in (b"", b"junk", b'{"seq":-1,"hash":"x","time":""}', b'{"seq":1e99}'):
        (log / "plain.jsonl.head").write_bytes(junk)
        assert kinds(log / "plain.jsonl") == ["checkpoint"]
