"""Files of records: blocks stay whole, limits hold, and a crash loses nothing that was written."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time

import pytest

from hookline.records.segments import (
    RecordFolder,
    default_records_path,
    is_held,
    old_segments,
    remove_old_segments,
)

from ..waiting import block_until

RUN = b'["run",0,{}]\n'
END = b'["end",0,{}]\n'


def fail(error):
    raise error


def record(folder, *lines, hooks=()):
    block = folder.start(fail)
    for digest in hooks:
        if not block.has_hooks(digest):
            block.hold_hooks(digest, b'["hooks","%s",[]]\n' % digest.encode())
    block.write(RUN)
    for line in lines:
        block.write(line)
    block.hold(END)
    block.finish()


def segments(path):
    return sorted(p for p in path.iterdir() if p.suffix == ".moments")


def lines(segment):
    """The lines of a segment after the first."""
    first, *rest = segment.read_bytes().splitlines(keepends=True)
    assert first.startswith(b'["hookline",{"format":1,')
    return rest


def moment(number):
    return b'["on_stop","",0,%d,0.1,0,{}]\n' % number


def test_runs_one_after_the_other_are_blocks_of_one_segment(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder, moment(0), moment(1))
    record(folder, moment(2))
    (segment,) = segments(tmp_path)
    assert lines(segment) == [RUN, moment(0), moment(1), END, RUN, moment(2), END]


def test_a_line_is_in_the_file_as_soon_as_it_is_written(tmp_path):
    block = RecordFolder(tmp_path).start(fail)
    block.hold(RUN)
    block.write(moment(0))
    assert lines(segments(tmp_path)[0]) == [RUN, moment(0)]
    block.hold(moment(1))
    assert lines(segments(tmp_path)[0]) == [RUN, moment(0)]
    block.write(moment(2))
    assert lines(segments(tmp_path)[0]) == [RUN, moment(0), moment(1), moment(2)]
    block.finish()


def test_runs_at_the_same_time_have_segments_of_their_own(tmp_path):
    folder = RecordFolder(tmp_path)
    one, two = folder.start(fail), folder.start(fail)
    for number, block in enumerate((one, two, one, two)):
        if number < 2:
            block.write(RUN)
        block.write(moment(number))
    two.finish()
    one.finish()
    record(folder, moment(4))
    contents = [lines(segment) for segment in segments(tmp_path)]
    assert sorted(contents, key=len) == [[RUN, moment(1), moment(3)], [RUN, moment(0), moment(2), RUN, moment(4), END]]


def test_hooks_are_written_once_in_each_segment_before_the_first_run_that_has_them(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder, hooks=["aa"])
    record(folder, hooks=["aa", "bb"])
    (segment,) = segments(tmp_path)
    assert lines(segment) == [b'["hooks","aa",[]]\n', RUN, END, b'["hooks","bb",[]]\n', RUN, END]


def test_a_new_segment_starts_when_the_current_one_is_full(tmp_path):
    folder = RecordFolder(tmp_path, segment_size=200)
    for number in range(6):
        record(folder, moment(number), hooks=["aa"])
    found = segments(tmp_path)
    assert len(found) > 1
    assert all(lines(segment)[:2] == [b'["hooks","aa",[]]\n', RUN] for segment in found)
    assert sum(lines(segment).count(RUN) for segment in found) == 6


def test_a_new_segment_starts_with_a_new_day(tmp_path, monkeypatch):
    folder = RecordFolder(tmp_path)
    record(folder)
    tomorrow = time.time() + 86400
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    record(folder)
    assert len({segment.name[:8] for segment in segments(tmp_path)}) == 2


def test_the_segment_of_a_process_that_ended_is_continued(tmp_path):
    for number in range(3):
        folder = RecordFolder(tmp_path)
        record(folder, moment(number))
        folder.close()
    (segment,) = segments(tmp_path)
    assert lines(segment).count(RUN) == 3


def test_a_folder_that_is_no_longer_used_releases_its_segment(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder)
    (segment,) = segments(tmp_path)
    assert is_held(str(segment))
    del folder
    assert not is_held(str(segment))


def test_a_segment_that_another_process_writes_is_left_alone(tmp_path):
    one, two = RecordFolder(tmp_path), RecordFolder(tmp_path)
    record(one, moment(1))
    record(two, moment(2))
    record(one, moment(3))
    contents = [lines(segment) for segment in segments(tmp_path)]
    assert contents == [[RUN, moment(1), END, RUN, moment(3), END], [RUN, moment(2), END]]


def test_a_torn_line_at_the_end_of_a_segment_does_not_damage_the_next_block(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder)
    folder.close()
    (segment,) = segments(tmp_path)
    with segment.open("ab") as file:
        file.write(b'["before_tool","sh')
    record(RecordFolder(tmp_path), moment(1))
    assert lines(segment) == [RUN, END, b'["before_tool","sh\n', RUN, moment(1), END]


def test_only_the_owner_may_read_records(tmp_path):
    place = tmp_path / "deep" / "records"
    record(RecordFolder(place))
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in segments(place)] == [0o600]


def test_the_oldest_segments_are_deleted_beyond_the_total_size(tmp_path):
    folder = RecordFolder(tmp_path, max_size=4000)
    for number in range(60):
        record(folder, *[moment(number)] * 5)
    found = segments(tmp_path)
    assert sum(segment.stat().st_size for segment in found) <= 4000
    assert moment(59) in found[-1].read_bytes()
    assert not any(moment(0) in segment.read_bytes() for segment in found)


def test_segments_are_deleted_when_they_are_too_old(tmp_path):
    first = RecordFolder(tmp_path)
    record(first)
    first.close()
    os.utime(segments(tmp_path)[0], (0, time.time() - 10 * 86400))
    imported = tmp_path / "imported.moments"
    imported.write_bytes(b"")
    os.utime(imported, (0, 0))
    record(RecordFolder(tmp_path, max_age=9 * 86400), moment(1))
    assert imported in segments(tmp_path)
    (segment,) = [path for path in segments(tmp_path) if path != imported]
    assert lines(segment) == [RUN, moment(1), END]


def test_a_segment_in_use_is_never_deleted(tmp_path):
    writing, ended = RecordFolder(tmp_path), RecordFolder(tmp_path)
    record(writing)
    record(ended)
    ended.close()
    names = [os.path.basename(old.path) for old in old_segments(tmp_path, 0, 0.0, time.time() + 10)]
    assert len(names) == 1
    removed = remove_old_segments(tmp_path, 0, None, time.time())
    assert [os.path.basename(old.path) for old in removed] == names
    (kept,) = segments(tmp_path)
    assert is_held(str(kept))
    record(writing)
    assert lines(kept).count(RUN) == 2


def test_a_deleted_segment_is_replaced(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder)
    segments(tmp_path)[0].unlink()
    record(folder, moment(7))
    assert lines(segments(tmp_path)[0]) == [RUN, moment(7), END]


WRITER = """
    import os, sys, time
    from hookline.records.segments import RecordFolder
    block = RecordFolder(sys.argv[1]).start(print)
    block.write(b'["run",0,{}]\\n')
    block.write(b'["on_stop","",0,0,0.1,0,{}]\\n')
    os.write(block._segment.file, b'["before_tool","sh')
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that is writing a record, in the middle of a line."""
    program = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_killed_process_leaves_its_lines_and_its_lock_is_released(tmp_path, writer):
    record(RecordFolder(tmp_path), moment(9))
    (theirs,) = tmp_path.glob(f"*-{writer.pid}-*.moments")
    (ours,) = set(segments(tmp_path)) - {theirs}
    assert is_held(str(theirs))
    assert lines(ours) == [RUN, moment(9), END]
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    block_until(lambda: not is_held(str(theirs)))
    assert lines(theirs) == [RUN, moment(0), b'["before_tool","sh']


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_writes_nothing_for_the_runs_of_its_parent(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder, moment(0))
    block = folder.start(fail)
    block.write(RUN)
    child = os.fork()
    if child == 0:
        block.write(moment(66))
        block.finish()
        record(folder, moment(1))
        folder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    block.write(moment(2))
    block.finish()
    contents = sorted(map(lines, segments(tmp_path)), key=len)
    assert contents == [[RUN, moment(1), END], [RUN, moment(0), END, RUN, moment(2)]]


def test_after_an_error_nothing_more_is_written_and_the_next_run_is_recorded(tmp_path, monkeypatch):
    folder, errors = RecordFolder(tmp_path), []
    block = folder.start(errors.append)
    block.write(RUN)

    def full(file, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    block.write(moment(1))
    block.write(moment(2))
    monkeypatch.undo()
    block.write(moment(3))
    block.finish()
    assert [error.strerror for error in errors] == ["No space left on device"]
    record(folder, moment(4))
    assert [line for segment in segments(tmp_path) for line in lines(segment)] == [RUN, RUN, moment(4), END]


def test_each_project_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    one, two = default_records_path(tmp_path / "a" / "shop"), default_records_path(tmp_path / "b" / "shop")
    assert one != two
    assert one.name.startswith("records-shop-")
    assert one.is_relative_to(tmp_path)


def test_a_segment_of_another_version_is_not_continued(tmp_path):
    record(RecordFolder(tmp_path))
    (path,) = tmp_path.iterdir()
    newer = path.read_bytes().replace(b'"format":1', b'"format":2')
    path.write_bytes(newer)
    record(RecordFolder(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    assert path.read_bytes() == newer


def test_a_segment_that_others_may_read_is_not_continued(tmp_path):
    record(RecordFolder(tmp_path))
    (path,) = tmp_path.iterdir()
    path.chmod(0o644)
    record(RecordFolder(tmp_path))
    new = max(tmp_path.iterdir())
    assert (path != new, stat.S_IMODE(new.stat().st_mode)) == (True, 0o600)


def test_a_segment_that_comes_into_use_while_old_ones_are_deleted_is_kept(tmp_path, monkeypatch):
    folder = RecordFolder(tmp_path)
    block = folder.start(fail)
    block.write(RUN)
    monkeypatch.setattr("hookline.records.segments.is_held", lambda path: False)  # when it was asked, nobody used it
    assert remove_old_segments(tmp_path, 0, None, time.time()) == []
    assert len(list(tmp_path.iterdir())) == 1
    block.finish()
