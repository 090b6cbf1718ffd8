"""Changes to a configuration file: what was asked for, and nothing else."""

import tomllib

import pytest

from hookline.config.editing import add_to_list, remove_from_list
from hookline.config.errors import ConfigError

APART = '[tool.hookline]\nmodel = "x"  # mine\n{}[project]\nname = "p"\n\n[tool.hookline.params]\na = 1\n'


@pytest.mark.parametrize(
    ("text", "before"),
    [
        (APART.format(""), []),
        (APART.format('plugins = ["a"]  # why\n'), ["a"]),
        ('[tool]\nhookline.model = "x"\n', []),
        ('[tool.ruff]\na = 1\n\n[project]\nname = "p"\n', []),
    ],
)
def test_a_file_with_scattered_tables_is_edited_correctly(tmp_path, text, before):
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    assert add_to_list(path, "plugins", "new")
    table = tomllib.loads(path.read_text())
    assert table["tool"]["hookline"].pop("plugins") == [*before, "new"]
    assert all(table[name] == value for name, value in tomllib.loads(text).items() if name != "tool")
    assert all(line in path.read_text() for line in text.splitlines() if "#" in line and "plugins" not in line)
    assert remove_from_list(path, "plugins", "new")
    assert tomllib.loads(path.read_text())["tool"]["hookline"]["plugins"] == before


@pytest.mark.parametrize("text", ['tool = "x"\n', "[tool]\nhookline = 1\n", '[tool.hookline]\nplugins = "a"\n'])
def test_a_file_with_another_type_there_is_reported_and_left_unchanged(tmp_path, text):
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"is not a (table|list)"):
        add_to_list(path, "plugins", "new")
    assert path.read_text() == text
