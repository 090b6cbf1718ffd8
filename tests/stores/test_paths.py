"""Default paths of stores."""

import pytest

from hookline._base.files import user_folder
from hookline.stores.paths import default_audit_path, default_runs_path, is_default_audit_path


def test_the_default_file_of_runs_is_in_the_data_folder_and_named_after_the_project(tmp_path):
    path = default_runs_path(tmp_path / "My Shop (new)")
    assert path.parent == user_folder("data")
    assert path.name.startswith("runs-my-shop-new-")


def test_the_audit_log_of_a_project_is_beside_its_file_of_runs_and_can_be_told_from_other_files(tmp_path):
    path = default_audit_path(tmp_path / "My Shop (new)")
    runs = default_runs_path(tmp_path / "My Shop (new)")
    assert path == runs.with_name(runs.name.replace("runs-", "audit-", 1)).with_suffix(".jsonl")
    assert is_default_audit_path(path)
    for other in (tmp_path / path.name, path.with_name("audit.jsonl"), path.with_suffix(".db"), "audit.jsonl"):
        assert not is_default_audit_path(other)


def test_projects_with_the_same_folder_name_have_different_files_of_runs(tmp_path):
    assert default_runs_path(tmp_path / "a" / "shop") != default_runs_path(tmp_path / "b" / "shop")


def test_a_project_has_one_file_of_runs_however_its_folder_is_written(tmp_path, monkeypatch):
    (tmp_path / "shop").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "shop")
    monkeypatch.chdir(tmp_path / "shop")
    paths = {default_runs_path(folder) for folder in (".", tmp_path / "shop", str(tmp_path / "link"), "../shop/")}
    assert len(paths) == 1


@pytest.mark.parametrize(
    ("folder", "name"), [("/", "runs-root-"), ("/ü", "runs-root-"), ("/" + "x" * 200, "runs-" + "x" * 40 + "-")]
)
def test_any_folder_gives_a_short_plain_file_name(folder, name):
    path = default_runs_path(folder)
    assert path.name.startswith(name)
    assert path.name.isascii()
    assert len(path.name) < 70
