"""Where the command line keeps sessions."""

import pytest

from hookline import Session
from hookline.cli.runner import load_session, save_session, session_store
from hookline.config.errors import ConfigError
from hookline.config.settings import Settings
from hookline.stores import JsonSessionStore, SqliteSessionStore
from hookline.testing import scripted_agent


def test_a_file_that_is_not_a_database_is_reported(tmp_path):
    (tmp_path / "big.txt").write_text("text")
    with pytest.raises(ConfigError, match=r"sessions: .*big\.txt is a file: give a folder, or a SQLite file \(\.db, "):
        load_session(Settings(sessions=str(tmp_path / "big.txt")), "mine")


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
    assert isinstance(session_store(settings.sessions), kind)
    session = load_session(settings, "mine")
    assert (session.id, len(session.messages)) == ("mine", 0)
    save_session(settings, "mine", Session("mine", [{"role": "user", "content": "hi"}]))
    assert load_session(settings, "mine").messages[0].content == "hi"
    assert (tmp_path / name).is_dir() == (kind is JsonSessionStore)
    assert load_session(settings, None) is None


@pytest.mark.parametrize("name", ["sessions", "s.db"])
def test_of_two_that_go_on_at_once_both_are_kept(tmp_path, name):
    settings = Settings(sessions=str(tmp_path / name))
    both = [load_session(settings, "z"), load_session(settings, "z")]
    for session in both:
        scripted_agent(["hello"]).run("hi", session=session)
        save_session(settings, "z", session)
    assert [message.content for message in load_session(settings, "z").messages] == ["hi", "hello"] * 2
