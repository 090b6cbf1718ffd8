"""Who could have written a file."""

import os
import sys

import pytest

from hookline._base.files import distrust_reason

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
STRANGER = 12345


@pytest.fixture
def file(tmp_path):
    """A file in two folders: ``project/code/rules.py``."""
    place = tmp_path / "project" / "code" / "rules.py"
    place.parent.mkdir(parents=True)
    place.write_text("")
    return place


@pytest.mark.parametrize(
    ("parts", "mode", "reason"),
    [
        (0, 0o644, None),
        (0, 0o600, None),
        (0, 0o646, "every user may write to it"),
        (1, 0o757, "its folder is {}, and every user may write to it"),
        (2, 0o757, "its folder is {}, and every user may write to it"),
        (1, 0o1777, None),  # sticky, as /tmp is: others cannot replace the file
        (3, 0o757, None),  # above the project
    ],
)
def test_other_users_who_may_write_to_a_file_or_its_folders_could_have_changed_it(file, parts, mode, reason):
    place = (file, *file.parents)[parts]
    place.chmod(mode)
    assert distrust_reason(file, file.parents[1]) == (reason and reason.format(place))


def test_without_a_project_only_the_folder_of_the_file_counts(file):
    file.parents[1].chmod(0o757)
    assert distrust_reason(file) is None
    file.parent.chmod(0o757)
    assert distrust_reason(file) is not None


@needs_root
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_a_group_that_is_not_the_users_own_counts_as_others(file, parts):
    place = (file, *file.parents)[parts]
    place.chmod(0o775)
    assert distrust_reason(file, file.parents[1]) is None  # root's own group
    os.chown(place, 0, STRANGER)
    assert f"the group {STRANGER} may write to it" in distrust_reason(file, file.parents[1])
    place.chmod(0o755)
    assert distrust_reason(file, file.parents[1]) is None


@needs_root
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_the_owner_of_a_file_or_folder_could_have_changed_it(file, parts):
    os.chown((file, *file.parents)[parts], STRANGER, 0)
    assert "it belongs to another user" in distrust_reason(file, file.parents[1])


@needs_root
def test_the_owner_of_a_sticky_folder_can_replace_its_files(file):
    file.parent.chmod(0o1755)
    os.chown(file.parent, STRANGER, 0)
    assert "it belongs to another user" in distrust_reason(file)


def test_a_link_is_as_safe_as_its_own_folder_and_that_of_its_target(file, tmp_path):
    link = tmp_path / "links" / "rules.py"
    link.parent.mkdir()
    link.symlink_to(file)
    assert distrust_reason(link) is None
    for place in (link.parent, file.parent):
        place.chmod(0o757)
        assert distrust_reason(link) == f"its folder is {place}, and every user may write to it"
        place.chmod(0o755)


def test_a_file_that_cannot_be_checked_is_not_trusted(tmp_path):
    assert "cannot be read" in distrust_reason(tmp_path / "missing")
    (tmp_path / "cycle").symlink_to(tmp_path / "cycle")
    assert "cannot be read" in distrust_reason(tmp_path / "cycle")
