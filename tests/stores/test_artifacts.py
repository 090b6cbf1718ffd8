"""ArtifactStore."""

import os
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Agent, ScriptedModel, call, reply
from hookline.stores import Artifact, ArtifactStore, StoreError
from hookline.stores import artifacts as module
from hookline.stores.artifacts import DatabaseArtifactStore, artifact_store_at

UNUSUAL = [
    "../../x",
    "/etc/passwd",
    "..",
    ".",
    "a/b",
    "a\\b",
    "a\0b",
    "CON",
    "nul.txt",
    "a:b",
    "é",
    " ",
    "%2e",
    "x" * 200,
]


@pytest.fixture
def store(tmp_path, request):
    made = artifact_store_at(tmp_path / getattr(request, "param", "made"))
    yield made
    if isinstance(made, DatabaseArtifactStore):
        made.close()


everywhere = pytest.mark.parametrize("store", ["made", "made.db"], indirect=True)


@everywhere
def test_saved_data_can_be_loaded(store):
    saved = store.save("report.md", "# Grüße")
    data = "# Grüße".encode()
    assert saved == Artifact("report.md", len(data), sha256(data).hexdigest(), saved.saved_at, "text/markdown")
    assert store.load("report.md") == data
    assert store.text("report.md") == "# Grüße"
    assert list(store.list()) == [saved]


@settings(deadline=None)
@given(st.text(min_size=1, max_size=20), st.binary(max_size=50))
def test_any_name_and_any_bytes_can_be_saved_and_loaded(tmp_path_factory, name, data):
    store = ArtifactStore(tmp_path_factory.getbasetemp() / "any")
    store.save(name, data)
    assert store.load(name) == data
    assert [(item.name, item.size) for item in store.list()] == [(name, len(data))]
    assert store.delete(name)
    assert not store.delete(name)


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_names_stay_in_the_folder(store, tmp_path, name):
    store.save(name, "x")
    assert [path.parent for path in tmp_path.rglob("*") if path.is_file()] == [store.folder]
    assert [item.name for item in store.list()] == [name]


@pytest.mark.parametrize(("name", "advice"), [("", "give one"), ("\ud800", "use another"), ("x" * 300, "shorter")])
@everywhere
def test_an_invalid_name_is_refused(store, name, advice):
    for use in (lambda: store.save(name, ""), lambda: store.load(name), lambda: store.delete(name)):
        with pytest.raises(StoreError, match=advice):
            use()


def test_names_that_differ_in_case_only_are_two_artifacts(store):
    store.save("A", "1")
    store.save("a", "2")
    assert (store.text("A"), store.text("a")) == ("1", "2")
    assert len({path.name.lower() for path in store.folder.iterdir()}) == 2


@everywhere
def test_saving_again_replaces_the_data_and_the_digest(store):
    first = store.save("x", "1")
    assert store.list()[0].sha256 == first.sha256
    second = store.save("x", "2")
    assert store.text("x") == "2"
    assert store.list()[0] == second
    assert second.sha256 != first.sha256


@everywhere
def test_a_missing_folder_is_an_empty_store(store):
    assert list(store.list()) == []
    assert not store.delete("x")
    for use in (store.load, store.text):
        with pytest.raises(StoreError, match="there is no artifact 'x'") as caught:
            use("x")
        assert caught.type is StoreError


def test_an_inaccessible_folder_is_an_error_with_advice(store, monkeypatch):
    store.save("x", "1")

    def closed(path, *_):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(module, "replace_file", closed)
    monkeypatch.setattr(Path, "unlink", closed)
    for use in (lambda: store.save("x", "2"), lambda: store.delete("x")):
        with pytest.raises(StoreError, match="give a folder that you can write to"):
            use()
    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(StoreError, match="give a folder that you can read"):
        store.list()


def test_a_file_in_place_of_the_folder_is_an_error_with_advice(tmp_path):
    (tmp_path / "file").write_text("")
    for use in (lambda store: store.save("x", "1"), lambda store: store.list()):
        with pytest.raises(StoreError, match="that is a file: give a folder"):
            use(ArtifactStore(tmp_path / "file"))


def test_a_folder_that_is_not_a_path_is_refused():
    with pytest.raises(TypeError, match="ArtifactStore takes a folder, as text or a Path, not NoneType"):
        ArtifactStore(None)


def test_symbolic_links_are_not_followed(store, tmp_path):
    store.save("x", "mine")
    (tmp_path / "secret").write_text("secret")
    link = store._path("x")
    link.unlink()
    link.symlink_to(tmp_path / "secret")
    assert list(store.list()) == []
    with pytest.raises(StoreError, match="cannot be read"):
        store.load("x")
    store.save("x", "new")
    assert (tmp_path / "secret").read_text() == "secret"
    assert store.text("x") == "new"


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_an_entry_that_is_not_a_regular_file_is_an_error_and_does_not_hang(store, kind):
    store.save("y", "1")
    path = store._path("x")
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(StoreError, match="cannot be read"):
        store.load("x")
    assert [item.name for item in store.list()] == ["y"]


def test_other_files_in_the_folder_are_ignored(store):
    store.save("x", "1")
    for name in ("readme.md", ".1234.tmp", "artifact-%zz", "artifact-A", "artifact-%ff", "artifact-"):
        (store.folder / name).write_text("")
    assert [item.name for item in store.list()] == ["x"]


def test_files_are_readable_by_their_owner_only(store):
    store.save("x", "1")
    assert stat.S_IMODE(store._path("x").stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_failed_save_keeps_the_earlier_data(store, monkeypatch):
    store.save("x", "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="cannot save the artifact 'x'.*No space left"):
        store.save("x", "new")
    assert store.text("x") == "old"
    assert len(list(store.folder.iterdir())) == 1


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    store = ArtifactStore(tmp_path / "file" / "made")
    for use in (lambda: store.save("x", ""), lambda: store.load("x"), store.list, lambda: store.delete("x")):
        with pytest.raises(StoreError):
            use()


@pytest.mark.parametrize("data", [None, 3, {"a": 1}])
def test_data_that_is_neither_text_nor_bytes_is_refused(store, data):
    with pytest.raises(TypeError, match="text or bytes"):
        store.save("x", data)


@everywhere
def test_text_of_a_binary_artifact_is_an_error(store):
    store.save("x", b"\xff\xfe")
    with pytest.raises(StoreError, match="use load"):
        store.text("x")


WRITER = """
import sys
from hookline.stores import ArtifactStore
store = ArtifactStore(sys.argv[1])
for n in range(60):
    store.save("x", sys.argv[2] * 50_000)
"""


@pytest.mark.slow
def test_concurrent_saves_never_leave_an_incomplete_file(store):
    store.save("x", "a" * 50_000)
    env = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, store.folder, who], env=env) for who in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        (item,) = store.list()
        seen.add((item.size, item.sha256))
        seen.add((len(data := store.load("x")), sha256(data).hexdigest()))
    assert [writer.wait() for writer in writers] == [0, 0]
    assert seen <= {(50_000, sha256(who * 50_000).hexdigest()) for who in (b"a", b"b")}


@everywhere
class TestTools:
    def run(self, store, *calls):
        agent = Agent("a", llm=ScriptedModel([*calls, reply("ok")]), tools=[store])
        return [message for message in agent.run("go").messages if message.role == "tool"]

    def test_a_model_saves_lists_and_reads(self, store):
        assert [tool.name for tool in store.tools()] == ["save_artifact", "read_artifact", "list_artifacts"]
        assert store.tools() is store.tools()
        results = self.run(
            store,
            call("list_artifacts"),
            call("save_artifact", name="a.txt", content="hello"),
            call("list_artifacts"),
            call("read_artifact", name="a.txt"),
            call("read_artifact", name="b.txt"),
        )
        assert [message.content for message in results[:4]] == [
            "There are no artifacts.",
            "Saved 'a.txt': 5 bytes.",
            "'a.txt': text/plain, 5 bytes",
            "hello",
        ]
        assert results[4].is_error
        assert results[4].content == "ValueError: there is no artifact 'b.txt'; use list_artifacts to see all artifacts"

    @pytest.mark.parametrize("length", [4, 7, 1000])
    def test_a_long_artifact_is_read_in_pages_without_splitting_a_character(self, store, length):
        text = "aé€🐈" * 50
        store.save("long", text)
        (_, read, _), offset, found = store.tools(), 0, ""
        while True:
            page = read(name="long", offset=offset, length=length)
            if "\n\n[bytes" not in page:
                found += page
                break
            part, _, note = page.partition("\n\n[")
            found += part
            if "continue" not in note:
                break
            offset = int(note.rpartition("=")[2].rstrip("]"))
        assert found == text

    def test_a_page_of_a_huge_artifact_is_limited(self, store):
        store.save("huge", b"x" * 50_000_000)
        (message,) = self.run(store, call("read_artifact", name="huge", length=10**12))
        assert len(message.content) < 17_000
        assert "continue with offset=16000" in message.content

    def test_reading_binary_data_or_beyond_the_end_is_an_error(self, store):
        store.save("a.png", b"\x89PNG\0")
        store.save("empty", "")
        results = self.run(
            store,
            call("read_artifact", name="a.png"),
            call("read_artifact", name="a.png", offset=99),
            call("read_artifact", name="empty"),
        )
        assert "not text (image/png, 5 bytes)" in results[0].content
        assert "has only 5 bytes" in results[1].content
        assert results[2].content == "The artifact is empty."


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_names_are_kept_apart_in_a_database(tmp_path, name):
    store = DatabaseArtifactStore(tmp_path / "a.db")
    store.save(name, b"\0\xff")
    store.save("other", "x")
    assert store.load(name) == b"\0\xff"
    assert {item.name for item in store.list()} == {name, "other"}
    store.close()
