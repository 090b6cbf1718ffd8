"""Parsing of command lines."""

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline._toolbox.command_line import CommandError, CommandLine, parse_command
from tests.cases import each_case
from tests.properties import examples


def words(text):
    """Return the words of a single simple command."""
    (pipeline,) = parse_command(text).pipelines
    (command,) = pipeline.commands
    return [word.text for word in command.words]


def expansions(text):
    """Return the expansions in the last word."""
    return set(parse_command(text).pipelines[-1].commands[-1].words[-1].expansions)


@each_case(
    ("text", "expected"),
    [
        ("ls -l", ["ls", "-l"]),
        ("  ls\t-l  ", ["ls", "-l"]),
        ("echo 'a b' \"c d\" e\\ f", ["echo", "a b", "c d", "e f"]),
        ("echo a'b'\"c\"\\d", ["echo", "abcd"]),
        ("echo '' \"\"", ["echo", "", ""]),
        ('echo "a\\"b\\$c\\`d\\\\e\\f"', ["echo", 'a"b$c`d\\e\\f']),
        ("echo 'a\\b' \"it's\" '\"'", ["echo", "a\\b", "it's", '"']),
        ("echo a#b # comment ; rm x", ["echo", "a#b"]),
        ("echo '#' \\#", ["echo", "#", "#"]),
        ("echo a \\\n  b", ["echo", "a", "b"]),
        ("echo \"a\\\nb\" 'c\nd'", ["echo", "ab", "c\nd"]),
        ('echo foo$ "$" \'$x\' \\$x "a$|b"', ["echo", "foo$", "$", "$x", "$x", "a$|b"]),
        ("echo x=1 a=b", ["echo", "x=1", "a=b"]),
        ("[ -f x ]", ["[", "-f", "x", "]"]),
        ("git show HEAD~1 HEAD@{1} a^", ["git", "show", "HEAD~1", "HEAD@{1}", "a^"]),
        ("find . ! -name '*.py' \\( -a \\)", ["find", ".", "!", "-name", "*.py", "(", "-a", ")"]),
        ("echo ä 日本 🙂", ["echo", "ä", "日本", "🙂"]),
    ],
)
def test_words_are_parsed_as_in_a_shell(text, expected):
    assert words(text) == expected
    assert expansions(text) == set()


@each_case(
    ("text", "expected"),
    [
        ("echo $x", {"variable"}),
        ('echo "$x"', {"variable"}),
        ("echo a$1", {"variable"}),
        ("echo $@", {"variable"}),
        ("echo *", {"glob"}),
        ("echo a?", {"glob"}),
        ("echo [ab]", {"glob"}),
        ("echo '*'", set()),
        ("echo \\*", set()),
        ("echo [", set()),
        ("echo a]", set()),
        ("echo ~", {"tilde"}),
        ("echo ~/x", {"tilde"}),
        ("echo a=~/x", {"tilde"}),
        ("echo '~'/x", set()),
        ("echo a~", set()),
        ("echo {a,b}", {"brace"}),
        ("echo {1..3}", {"brace"}),
        ("echo {a}", set()),
        ("echo {}", set()),
        ("echo '{a,b}'", set()),
        ("echo !x", {"history"}),
        ("echo x!", set()),
        ('echo "!x"', {"history"}),
        ("echo '!x'", set()),
        ("echo ~/*", {"tilde", "glob"}),
    ],
)
def test_a_word_names_the_expansions_of_a_shell(text, expected):
    assert expansions(text) == expected


def test_the_pattern_of_a_glob_escapes_quoted_wildcards():
    (pipeline,) = parse_command("ls '*'*\"?\"?\\[[a-c]").pipelines
    assert pipeline.commands[0].words[1].pattern == "[*]*[?]?[[][a-c]"


def test_lists_and_pipelines_keep_their_order():
    line = parse_command("a | b && c || ! d; e & f\ng")
    shape = [[command.words[0].text for command in pipeline.commands] for pipeline in line.pipelines]
    assert shape == [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"]]
    assert line.operators == ("&&", "||", ";", "&", ";", "")
    assert [pipeline.negated for pipeline in line.pipelines] == [False, False, True, False, False, False]
    assert parse_command("a &&\n\n b |\n c # x\n").operators == ("&&", "")


def test_redirects_and_assignments_are_not_words():
    (pipeline,) = parse_command("A=1 B='x y' C+=z cmd a >out 2>>err <in 2>&1 >|x D=1").pipelines
    (command,) = pipeline.commands
    assert [word.text for word in command.words] == ["cmd", "a", "D=1"]
    assert [(a.name, a.value.text, a.added) for a in command.assignments] == [
        ("A", "1", False),
        ("B", "x y", False),
        ("C", "z", True),
    ]
    assert [(r.descriptor, r.operator, r.target.text) for r in command.redirects] == [
        (1, ">", "out"),
        (2, ">>", "err"),
        (0, "<", "in"),
        (2, ">&", "1"),
        (1, ">", "x"),
    ]
    assert words("echo a2>x") == ["echo", "a2"]
    assert words("echo 2 >x") == ["echo", "2"]


@each_case(
    "text",
    [
        "",
        " ",
        "\n",
        "# x",
        ";",
        "a ;; b",
        "&& a",
        "a &&",
        "a ||",
        "a |",
        "| a",
        "a | | b",
        "a & & b",
        "a &&& b",
        "a >",
        "a > ; b",
        "a < | b",
        "'",
        '"',
        "a 'b",
        'a "b',
        "a\\",
        "a \\",
        "a\\\nb",
        "a &\\\n& b",
        "$(a)",
        "a $(b)",
        'a "$(b)"',
        "`a`",
        'a "`b`"',
        "${a}",
        "$((1))",
        "$'a'",
        'a $"b"',
        "<(a)",
        "a >(b)",
        "(a)",
        "a (b)",
        "a()",
        "{ a; }",
        "if a",
        "for a",
        "while a",
        "case a",
        "function a",
        "[[ a ]]",
        "! ! a",
        "select a",
        "a <<b",
        "a <<<b",
        "a <>b",
        "a <|b",
        "a <&1",
        "a >&-",
        "a >&x",
        "a >&3",
        "a &>b",
        "a |& b",
        "a 3>b",
        "a 0>b",
        "a 1<b",
        "a {fd}>b",
        "a\rb",
        "a\0b",
        "a\x1bb",
        "'\x07'",
        "a\u00a0b",
        "a\u2003b",
        "a\u200bb",
        "'\u2028'",
        "'\u202e'",
        "a \ud800",
        "\ufeffa",
        "a\x85b",
        "a\x7f",
        "a [b'c']",
        "then",
        "a; done",
        "x" * 100_001,
    ],
)
def test_unsupported_syntax_is_an_error(text):
    with pytest.raises(CommandError):
        parse_command(text)


def test_the_error_says_what_is_wrong_where_and_what_to_write_instead():
    with pytest.raises(
        CommandError, match=r"^'\$\(' at position 6 is not supported: run that command separately first$"
    ):
        parse_command("echo $(id)")


@given(st.one_of(st.text(), st.text("ab '\"\\$`*?[]{}~!#&|;<>()\n\t=,.0129-/\r\ud800\u2028")))
def test_any_text_gives_a_tree_or_an_error(text):
    try:
        line = parse_command(text)
    except CommandError:
        return
    assert isinstance(line, CommandLine)
    assert len(line.pipelines) == len(line.operators)


PIECES = st.text("ab1$[]{}'\"\\#=.,-/;|&<>\n~!^%@:+", max_size=14)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@settings(max_examples=examples(120), deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=3).map(" ".join))
def test_bash_parses_the_same_words(text):
    """A command without expansions has the words that bash passes to a program."""
    try:
        line = parse_command(f"printf %s\\\\0 {text}")
    except CommandError:
        return
    (first, *others) = line.pipelines
    (command, *more) = first.commands
    unusual = others or more or command.redirects or any(word.expansions - {"history"} for word in command.words)
    if unusual or len(command.words) < 3:
        return
    done = subprocess.run(
        ["bash", "--norc", "--posix", "-c", f"printf %s\\\\0 {text}"], capture_output=True, timeout=20, check=False
    )
    assert done.stderr == b""
    assert done.stdout.decode().split("\0")[:-1] == [word.text for word in command.words[2:]]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@settings(max_examples=examples(60), deadline=None)
@given(st.text("a '\"\\;|&<>\n!()#", max_size=16).map("true a".__add__))
def test_every_parsed_command_is_valid_in_bash(text):
    try:
        parse_command(text)
    except CommandError:
        return
    done = subprocess.run(["bash", "--norc", "-n", "-c", text], capture_output=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece", ["a ", "'", '"', "\\", "$", "[", "{", "*", "a;", "a|", "<", "#", "\\\n", "~", "!", "a=", '"!']
)
@pytest.mark.slow
def test_huge_texts_are_parsed_in_linear_time(piece):
    text, problem = "echo " + piece * (40_000 // len(piece)), ""
    try:
        commands = parse_command(text).pipelines
    except CommandError as error:
        commands, problem = (), str(error)
    assert commands or problem  # one of the two
