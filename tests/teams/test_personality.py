"""Reading personality files, and their errors."""

import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline._base.frozen import plain
from hookline.config.errors import ConfigError
from hookline.config.settings import DeclaredHook
from hookline.plugins.trust import TrustedFiles, digest, only_trusted
from hookline.teams.personality import PersonalityFiles, is_id, main_files


def read(path):
    return PersonalityFiles.read(path).personality()


def written(tmp_path, text, name="coder.toml"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_field_is_read_and_paths_are_taken_from_the_file(tmp_path):
    found = read(
        written(
            tmp_path,
            """
            id = "writer"
            name = "The writer"
            description = "Writes."
            instructions = "Write."
            model = "scripted:turns.json"
            params = { temperature = 0 }
            tools = ["read_*", "tools.py:look"]
            plugins = []
            guards = ["hooks.py", { use = "RateLimitHook", args = { per_minute = 3 } }]
            delegates = ["critic"]
            max_steps = 4
            """,
        )
    )
    assert (found.id, found.name, found.description, found.instructions) == (
        "writer",
        "The writer",
        "Writes.",
        "Write.",
    )
    assert found.model == f"scripted:{tmp_path / 'turns.json'}"
    assert plain(found.params) == {"temperature": 0}
    assert found.tools == ("read_*", f"{tmp_path / 'tools.py'}:look")
    assert found.guards == (str(tmp_path / "hooks.py"), DeclaredHook("RateLimitHook", {"per_minute": 3}))
    assert (found.plugins, found.delegates, found.max_steps) == ((), ("critic",), 4)
    assert found.code == [tmp_path / "hooks.py", tmp_path / "tools.py"]


def test_rules_beside_personalities_are_none(tmp_path):
    coder = written(tmp_path, 'guards = ["rules.toml"]\n')
    rules = written(tmp_path, "[[rules]]\n", "rules.toml")
    assert main_files(tmp_path) == [coder]
    assert read(coder).guards == (str(rules),)
    rules.write_text('instructions = "You know the rules."\n')
    assert main_files(tmp_path) == [coder, rules]


def test_missing_fields_are_taken_from_the_settings(tmp_path):
    found = read(written(tmp_path, 'description = "x"'))
    assert (found.id, found.display_name) == ("coder", "coder")
    assert [found.instructions, found.model, found.tools, found.plugins, found.max_steps] == [None] * 5


def test_a_personality_folder_can_have_an_instructions_file(tmp_path):
    main = written(tmp_path, 'description = "x"', "critic/personality.toml")
    written(tmp_path, "# Be strict\n\nSay what is wrong.\n", "critic/instructions.md")
    written(tmp_path, "", "critic/hooks.py")
    written(tmp_path, 'description = "x"', "coder.toml")
    for ignored in (".hidden.toml", "_draft.toml", "notes.txt", "helpers/tools.py"):
        written(tmp_path, "rubbish = ", ignored)
    assert main_files(tmp_path) == [tmp_path / "coder.toml", main]
    assert (read(main).id, read(main).instructions) == ("critic", "# Be strict\n\nSay what is wrong.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tool = []", "unknown key 'tool'. Did you mean 'tools'? Known keys: id, name"),
        ("tools = 'read_file'", "tools: expected a list of texts; got 'read_file'"),
        ("model = 3", "model: expected a text; got 3"),
        ("max_steps = -1", "max_steps: expected a whole number, 0 or more; got -1"),
        ("guards = [{ use = 'x', pints = [] }]", "guards: a hook has no 'pints'. Did you mean 'points'?"),
        ("params = 'hot'", 'params: expected a table such as { key = "value" }'),
        ("id = '../hookline'", "id: '../hookline' is not a valid id: use at most 64 letters, digits"),
        ("id = ''", "id: '' is not a valid id"),
        ("description = ", "is not valid TOML"),
        ("x = " + "[" * 100_000, "is not valid TOML"),
        ("  \n", "is empty: add at least a line such as"),
        ("x" * 1_000_001, "is larger than the maximum of 1,000,000 bytes"),
    ],
)
def test_an_error_names_the_file_the_key_and_the_remedy(tmp_path, text, words):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read(path)
    assert str(error.value).startswith(str(path))
    assert words in str(error.value)


def test_the_id_from_a_file_name_must_be_valid_too(tmp_path):
    with pytest.raises(ConfigError, match="'two words' is not a valid id"):
        read(written(tmp_path, 'description = "x"', "two words.toml"))


def test_a_file_that_is_not_utf8_gives_an_error(tmp_path):
    (tmp_path / "coder.toml").write_bytes(b'description = "\xff"')
    with pytest.raises(ConfigError, match=r"coder\.toml is not UTF-8 text"):
        read(tmp_path / "coder.toml")
    main = written(tmp_path, 'description = "x"', "critic/personality.toml")
    (tmp_path / "critic/instructions.md").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"instructions\.md is not UTF-8 text"):
        read(main)


def test_instructions_in_two_places_give_an_error(tmp_path):
    main = written(tmp_path, 'instructions = "x"', "critic/personality.toml")
    written(tmp_path, "y", "critic/instructions.md")
    with pytest.raises(ConfigError, match=r"instructions are given here and in instructions\.md: remove one"):
        read(main)


def test_a_folder_with_only_instructions_gives_an_error(tmp_path):
    written(tmp_path, "y", "critic/instructions.md")
    (main,) = main_files(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no file .*personality\.toml"):
        read(main)


@pytest.mark.parametrize("name", ["coder/personality.toml", "coder/instructions.md"])
def test_a_world_writable_file_is_not_trusted(tmp_path, name):
    main = written(tmp_path, 'description = "x"', "coder/personality.toml")
    written(tmp_path, "y", "coder/instructions.md")
    (tmp_path / name).chmod(0o666)
    with pytest.raises(ConfigError, match="is not used: every user may write to it"):
        read(main)
    assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o666


@pytest.mark.parametrize("name", ["coder/personality.toml", "coder/instructions.md"])
def test_in_a_project_a_file_is_read_only_with_the_content_that_the_user_trusts(tmp_path, name):
    main = written(tmp_path, 'description = "x"', "coder/personality.toml")
    written(tmp_path, "y", "coder/instructions.md")
    known = {path.resolve(): digest(path.read_bytes()) for path in main.parent.iterdir()}
    with only_trusted(TrustedFiles([tmp_path], lambda path, seen: known.get(path) == seen)):
        assert read(main).instructions == "y"
        (tmp_path / name).write_text('description = "changed"')
        with pytest.raises(ConfigError, match="is not trusted, or has changed:"):
            read(main)


@given(st.text(max_size=80))
def test_ids_cannot_be_paths_or_differ_only_by_case(text):
    if is_id(text):
        assert text.isascii()
        assert os.path.basename(text) == text
        assert text not in (".", "..")
        assert text == text.strip()
