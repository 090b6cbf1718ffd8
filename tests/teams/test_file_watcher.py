"""FileWatcher detects changed files."""

import os
import time

from hookline.teams import personality_folder
from hookline.teams.personality_folder import FileWatcher


def test_a_file_that_was_just_written_counts_as_changed_until_its_time_is_unambiguous(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("one")
    watcher = FileWatcher()
    assert watcher.changed([path])
    assert watcher.changed([path])  # it could have changed within a tick of the file system's clock
    later = time.time_ns() + personality_folder.RACY
    monkeypatch.setattr(personality_folder.time, "time_ns", lambda: later)
    assert watcher.changed([path])
    assert not watcher.changed([path])


def test_every_kind_of_change_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(personality_folder, "RACY", 0)
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("one")
    watcher = FileWatcher()
    watcher.changed([path])
    for change in (
        lambda: path.write_text("longer"),
        lambda: os.utime(path, ns=(1, 1)),
        lambda: path.chmod(0o600),
        path.unlink,
        lambda: path.write_text("one"),
    ):
        change()
        assert watcher.changed([path])
        assert not watcher.changed([path])
    assert watcher.changed([path, other])
    assert not watcher.changed([path, other])
    watcher.forget()
    assert watcher.changed([path, other])
