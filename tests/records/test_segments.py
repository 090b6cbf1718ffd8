"""Files of records: blocks stay whole, limits hold, and a crash loses nothing that was written."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from hookline.records.segments import (
    RecordFolder,
    default_records_path,
    is_held,
    live_files,
    old_segments,
    remove_old_segments,
)

from ..waiting import block_until

RUN = b'["run",0,{}]\n'
END = b'["end",0,{}]\n'


def fail(error):
    raise error


def record(folder, *lines, hooks=()):
    live = folder.start(1.0, fail)
    for digest in hooks:
        live.write_aside(b'["hooks","%s",[]]\n' % digest.encode(), digest)
    live.write(RUN)
    for line in lines:
        live.write(line)
    live.hold(END)
    live.finish()


def segments(path):
    return sorted(p for p in path.iterdir() if p.suffix == ".moments")


def moment(number):
    return b'["on_stop","",0,%d,0.1,0,{}]\n' % number


def test_a_finished_run_is_one_block_in_the_segment_of_the_process(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder, moment(0), moment(1))
    record(folder, moment(2))
    (segment,) = segments(tmp_path)
    first, *lines = segment.read_bytes().splitlines(keepends=True)
    assert first.startswith(b'["hookline",{"format":1,')
    assert lines == [RUN, moment(0), moment(1), END, RUN, moment(2), END]
    assert [os.path.getsize(path) for path in live_files(tmp_path)] == [0]


def test_runs_that_overlap_are_not_interleaved(tmp_path):
    folder = RecordFolder(tmp_path)
    one, two = folder.start(1.0, fail), folder.start(1.0, fail)
    for number, live in enumerate((one, two, one, two)):
        if number < 2:
            live.write(RUN)
        live.write(moment(number))
    two.finish()
    one.finish()
    (segment,) = segments(tmp_path)
    assert segment.read_bytes().splitlines(True)[1:] == [RUN, moment(1), moment(3), RUN, moment(0), moment(2)]


def test_hooks_are_written_once_in_each_segment_before_the_first_block_that_has_them(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder, hooks=["aa"])
    record(folder, hooks=["aa", "bb"])
    (segment,) = segments(tmp_path)
    assert segment.read_bytes().splitlines(True)[1:] == [
        b'["hooks","aa",[]]\n', RUN, END, b'["hooks","bb",[]]\n', RUN, END,
    ]  # fmt: skip


def test_a_new_segment_starts_when_the_current_one_is_full(tmp_path):
    folder = RecordFolder(tmp_path, segment_size=200)
    for number in range(6):
        record(folder, moment(number), hooks=["aa"])
    found = segments(tmp_path)
    assert len(found) > 1
    for segment in found:
        text = segment.read_bytes()
        assert text.startswith(b'["hookline"')
        assert text.index(b'"hooks","aa"') < text.index(RUN)
    assert b"".join(segment.read_bytes() for segment in found).count(RUN) == 6


def test_a_new_segment_starts_with_a_new_day(tmp_path, monkeypatch):
    folder = RecordFolder(tmp_path)
    record(folder)
    tomorrow = time.time() + 86400
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    record(folder)
    days = [segment.name[:8] for segment in segments(tmp_path)]
    assert len(set(days)) == 2


def test_the_segment_of_a_process_that_ended_is_continued(tmp_path):
    for number in range(3):
        folder = RecordFolder(tmp_path)
        record(folder, moment(number))
        folder.close()
    (segment,) = segments(tmp_path)
    assert segment.read_bytes().count(RUN) == 3
    assert live_files(tmp_path) == []


def test_a_segment_that_another_process_writes_is_left_alone(tmp_path):
    one, two = RecordFolder(tmp_path), RecordFolder(tmp_path)
    record(one, moment(1))
    record(two, moment(2))
    record(one, moment(3))
    contents = [segment.read_bytes().splitlines(True)[1:] for segment in segments(tmp_path)]
    assert contents == [[RUN, moment(1), END, RUN, moment(3), END], [RUN, moment(2), END]]


def test_a_torn_line_at_the_end_of_a_segment_does_not_damage_the_next_block(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder)
    folder.close()
    (segment,) = segments(tmp_path)
    with segment.open("ab") as file:
        file.write(b'["before_tool","sh')
    record(RecordFolder(tmp_path), moment(1))
    assert segment.read_bytes().splitlines(True)[-4:] == [b'["before_tool","sh\n', RUN, moment(1), END]


def test_only_the_owner_may_read_records(tmp_path):
    place = tmp_path / "deep" / "records"
    folder = RecordFolder(place)
    record(folder)
    running = folder.start(1.0, fail)
    running.write(RUN)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [place, place / "live", *segments(place)]}
    assert set(modes.values()) == {0o700, 0o600}
    assert modes["records"] == modes["live"] == 0o700
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in live_files(place)] == [0o600]
    running.abandon()


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
    (old,) = segments(tmp_path)
    os.utime(old, (0, time.time() - 10 * 86400))
    imported = tmp_path / "imported.moments"
    imported.write_bytes(b"")
    os.utime(imported, (0, 0))
    record(RecordFolder(tmp_path, max_age=9 * 86400))
    assert imported in segments(tmp_path)
    assert sum(segment.read_bytes().count(RUN) for segment in segments(tmp_path)) == 1


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
    assert kept.read_bytes().count(RUN) == 2


def test_a_deleted_segment_is_replaced(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder)
    segments(tmp_path)[0].unlink()
    record(folder, moment(7))
    assert moment(7) in segments(tmp_path)[0].read_bytes()


WRITER = """
    import os, sys, time
    from hookline.records.segments import RecordFolder
    folder = RecordFolder(sys.argv[1])
    live = folder.start(1.0, print)
    live.write_aside(b'["hooks","aa",[]]\\n', "aa")
    live.write(b'["run",0,{}]\\n')
    live.write(b'["on_stop","",0,0,0.1,0,{}]\\n')
    os.write(live.file, b'["before_tool","sh')
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


def test_the_live_file_of_a_killed_process_becomes_a_block_without_its_torn_line(tmp_path, writer):
    record(RecordFolder(tmp_path), moment(9))
    assert len([path for path in live_files(tmp_path) if is_held(path)]) == 1  # it is still running: left alone
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    block_until(lambda: not any(is_held(path) and os.path.getsize(path) for path in live_files(tmp_path)))
    record(RecordFolder(tmp_path))
    text = b"".join(segment.read_bytes() for segment in segments(tmp_path))
    assert b'["hooks","aa",[]]\n' + RUN + moment(0) + RUN in text
    assert b"before_tool" not in text
    assert all(os.path.getsize(path) == 0 for path in live_files(tmp_path))


def test_two_processes_that_start_together_move_a_leftover_once(tmp_path):
    folder = RecordFolder(tmp_path)
    left = folder.start(1.0, fail)
    left.write(RUN)
    left.write(moment(5))
    left.abandon()
    folders = [RecordFolder(tmp_path) for _ in range(4)]
    threads = [threading.Thread(target=record, args=(one,)) for one in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = b"".join(segment.read_bytes() for segment in segments(tmp_path))
    assert text.count(moment(5)) == 1
    assert text.count(RUN) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_writes_nothing_for_the_runs_of_its_parent(tmp_path):
    folder = RecordFolder(tmp_path)
    record(folder, moment(0))
    live = folder.start(1.0, fail)
    live.write(RUN)
    child = os.fork()
    if child == 0:
        live.write(moment(66))
        live.finish()
        record(folder, moment(1))
        folder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    live.write(moment(2))
    live.finish()
    contents = [segment.read_bytes().splitlines(True)[1:] for segment in segments(tmp_path)]
    assert sorted(contents, key=len) == [[RUN, moment(1), END], [RUN, moment(0), END, RUN, moment(2)]]


def test_a_full_disk_leaves_the_segment_whole_and_the_live_file_readable(tmp_path, monkeypatch):
    folder = RecordFolder(tmp_path)
    record(folder, moment(0))
    (segment,) = segments(tmp_path)
    before = segment.read_bytes()
    live = folder.start(1.0, fail)
    live.write(RUN + moment(1) * 200)
    real, room = os.write, [1000]

    def limited(file, data):
        if len(data) > room[0]:
            raise OSError(28, "No space left on device")
        room[0] -= len(data)
        return real(file, data[:500])

    monkeypatch.setattr(os, "write", limited)
    with pytest.raises(OSError, match="No space"):
        live.finish()
    monkeypatch.undo()
    assert segment.read_bytes() == before
    record(RecordFolder(tmp_path))
    text = b"".join(segment.read_bytes() for segment in segments(tmp_path))
    assert text.count(moment(1)) == 200


def test_each_project_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    one, two = default_records_path(tmp_path / "a" / "shop"), default_records_path(tmp_path / "b" / "shop")
    assert one != two
    assert one.name.startswith("records-shop-")
    assert one.is_relative_to(tmp_path)
