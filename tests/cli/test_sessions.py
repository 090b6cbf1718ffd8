"""Where the command line keeps sessions."""

import pytest

from hookline import Session
from hookline.cli.runner import opened, saved, store_at
from hookline.config.errors import ConfigError
from hookline.config.settings import Settings
from hookline.stores import JsonSessionStore, SqliteSessionStore
from hookline.testing import scripted_agent


def test_a_file_that_is_no_database_is_told(tmp_path):
    (tmp_path / "big.txt").write_text("text")
    with pytest.raises(ConfigError, match=r"sessions: .*big\.txt is a file: name a folder, or a SQLite file \(\.db, "):
        opened(Settings(sessions=str(tmp_path / "big.txt")), "mine")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sessions", JsonSessionStore),
        ("my.sessions", JsonSessionStore),
        ("db", JsonSessionStore),
        ("s.db", SqliteSessionStore),
        ("s.sqlite", SqliteSessionStore),
        ("S.SQLITE3", SqliteSessionStore),
    ],
)
def test_a_session_comes_back_from_a_folder_or_a_sqlite_file(tmp_path, name, kind):
    settings = Settings(sessions=str(tmp_path / name))
    assert isinstance(store_at(settings.sessions), kind)
    session = opened(settings, "mine")
    assert (session.id, len(session.messages)) == ("mine", 0)
    saved(settings, "mine", Session("mine", [{"role": "user", "content": "hi"}]))
    assert opened(settings, "mine").messages[0].content == "hi"
    assert (tmp_path / name).is_dir() == (kind is JsonSessionStore)
    assert opened(settings, None) is None


@pytest.mark.parametrize("name", ["sessions", "s.db"])
def test_of_two_that_go_on_at_once_both_are_kept(tmp_path, name):
    settings = Settings(sessions=str(tmp_path / name))
    both = [opened(settings, "z"), opened(settings, "z")]
    for session in both:
        scripted_agent(["hello"]).run("hi", session=session)
        saved(settings, "z", session)
    assert [message.content for message in opened(settings, "z").messages] == ["hi", "hello"] * 2
