"""Noticing changed files."""

import os
import time

from hookline.teams import watch
from hookline.teams.watch import Watch


def test_a_file_that_was_just_written_is_looked_at_again_until_it_is_old_enough(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("one")
    looker = Watch()
    assert looker.changed([path])
    assert looker.changed([path])  # it could have changed within a tick of the file system's clock
    later = time.time_ns() + watch.RACY
    monkeypatch.setattr(watch.time, "time_ns", lambda: later)
    assert looker.changed([path])
    assert not looker.changed([path])


def test_every_kind_of_change_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "RACY", 0)
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("one")
    looker = Watch()
    looker.changed([path])
    for change in (
        lambda: path.write_text("longer"),
        lambda: os.utime(path, ns=(1, 1)),
        lambda: path.chmod(0o600),
        path.unlink,
        lambda: path.write_text("one"),
    ):
        change()
        assert looker.changed([path])
        assert not looker.changed([path])
    assert looker.changed([path, other])
    assert not looker.changed([path, other])
    looker.forget()
    assert looker.changed([path, other])
