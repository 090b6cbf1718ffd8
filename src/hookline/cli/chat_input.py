"""The prompt of ``hookline chat``: editing, history, completion and a status line, with prompt_toolkit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base.errors import NotInstalledError
from .text import printable

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings


PROMPT = "❯ "  # noqa: RUF001 - not the sign of a quotation
ATTACH = "/attach "
_STYLE = {"prompt": "bold ansicyan", "speaker": "bold", "bottom-toolbar": "noreverse dim"}
MAX_FILES = 200
"""Number of files that are offered for a word."""


class ChatInput:
    """Reads messages. A pasted text is one message, however many lines it has; Alt-Enter begins a new line.

    Args:
        commands: the slash commands with a description of each.
        history: the file with earlier messages, which only this user may read.
        status: returns the text of the status line.
        clean: replaces what must not be stored in a message before it is added to the file.

    Example::

        message = ChatInput({"/quit": "quit"}, Path("history"), lambda: "gpt-4 · 12 tokens").read("critic")

    Raises:
        NotInstalledError: ``prompt_toolkit`` is missing.
    """

    def __init__(
        self,
        commands: Mapping[str, str],
        history: Path,
        status: Callable[[], str],
        clean: Callable[[str], str] = str,
    ) -> None:
        try:
            from prompt_toolkit import PromptSession
        except ImportError as error:
            raise NotInstalledError("prompt_toolkit", "cli") from error
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.styles import Style

        self._session: PromptSession[str] = PromptSession(
            history=_history(history, clean),
            completer=_completer(commands),
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            key_bindings=_key_bindings(),
            bottom_toolbar=lambda: [("", printable(status(), keep=""))],
            prompt_continuation=" " * len(PROMPT),
            reserve_space_for_menu=6,
            style=Style.from_dict(_STYLE),
        )

    def read(self, speaker: str = "", typed: str = "") -> str:
        """Ask for a message. ``typed`` was typed before, and is only sent after it was shown and Enter was pressed.

        Raises:
            EOFError: Ctrl-D was pressed.
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.input.typeahead import get_typeahead

        early = "".join(press.data for press in get_typeahead(self._session.input) if not press.data.startswith("\x1b"))
        default = "\n".join(f"{typed}{early}".splitlines()).rstrip()
        prompt = FormattedText([("class:speaker", printable(speaker, keep="")), ("class:prompt", PROMPT)])
        return self._session.prompt(prompt, default=default)


def _history(file: Path, clean: Callable[[str], str]) -> History:
    """Return the history in a file; one in memory if the file cannot be used."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()

    class CleanedHistory(FileHistory):
        """A history whose file has no sensitive values."""

        def store_string(self, string: str) -> None:
            super().store_string(clean(string))

    return CleanedHistory(file)


def _key_bindings() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def new_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _completer(commands: Mapping[str, str]) -> Completer:
    from prompt_toolkit.completion import Completer, Completion

    class ChatCompleter(Completer):
        """Completes slash commands, and the names of files in all other words."""

        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Completion]:
            text = document.text_before_cursor
            if text.startswith("/") and " " not in text:
                for name, description in commands.items():
                    if name.startswith(text):
                        yield Completion(name, -len(text), display_meta=description)
            elif text.startswith(ATTACH) or complete_event.completion_requested:
                beginning = text.removeprefix(ATTACH) if text.startswith(ATTACH) else text.split(" ")[-1]
                for path in files_like(beginning):
                    yield Completion(path, -len(beginning), display=printable(path, keep=""))

    return ChatCompleter()


def files_like(beginning: str) -> list[str]:
    """Return the files and folders whose paths begin with this text; folders end with a slash."""
    shown, name = os.path.split(beginning)
    try:
        entries = sorted(os.scandir(os.path.expanduser(shown) or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    found = [
        os.path.join(shown, entry.name) + ("/" if entry.is_dir() else "")
        for entry in entries
        if entry.name.startswith(name) and (name or not entry.name.startswith("."))
    ]
    return found[:MAX_FILES]
