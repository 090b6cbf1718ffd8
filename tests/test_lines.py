"""Lines that processes write and that others read meanwhile."""

import os

import pytest

from tests.lines import add_line, read_lines


@pytest.mark.parametrize("written", range(1, 24))
def test_half_a_line_is_not_read_and_spoils_no_other_line(tmp_path, written):
    path = tmp_path / "lines"
    assert read_lines(path) == []
    add_line(path, "one", 1)
    size = path.stat().st_size
    add_line(path, "two \n ü ]", [2])
    os.truncate(path, size + written)
    assert read_lines(path) == [["one", 1]]
    add_line(path, "three")
    assert read_lines(path) == [["one", 1], ["three"]]
