"""Keys that are pressed while a reply is shown."""

import os
import signal
import termios
import threading

import pytest

from hookline.cli.keyboard import Keyboard
from tests.waiting import block_until


@pytest.fixture
def terminal():
    """Both ends of a terminal: the keys are written to the first one."""
    keys, fd = os.openpty()
    yield keys, fd
    os.close(keys)
    os.close(fd)


def is_echoing(fd):
    return bool(termios.tcgetattr(fd)[3] & termios.ECHO)


@pytest.mark.parametrize(
    ("keys", "typed"),
    [
        ("yes", "yes"),
        ("héllo ❯", "héllo ❯"),
        ("a\x1b[Ab", "ab"),
        ("abc\x7f\x7fd", "ad"),
        ("gone\x15kept", "kept"),
        ("one\ntwo", "one\ntwo"),
        ("\x1b[200~one\rtwo\x1b[201~", "one\ntwo"),
        ("\x1bx", "x"),
    ],
)
def test_typed_keys_wait_for_the_next_prompt_and_do_not_interrupt(terminal, keys, typed):
    end, fd = terminal
    with Keyboard(fd) as keyboard, keyboard.listening(lambda: pytest.fail("no Esc was pressed")):
        os.write(end, keys.encode())
        block_until(lambda: keyboard.typed == typed)


@pytest.mark.parametrize("before", ["", "typed"])
def test_esc_interrupts(terminal, before):
    end, fd = terminal
    pressed = threading.Event()
    with Keyboard(fd) as keyboard, keyboard.listening(pressed.set):
        os.write(end, f"{before}\x1b".encode())
        assert pressed.wait(30)
    assert keyboard.typed == before


def test_keys_are_not_echoed_and_the_terminal_is_as_before_afterwards(terminal):
    _, fd = terminal
    before = termios.tcgetattr(fd)
    with Keyboard(fd) as keyboard:
        assert not is_echoing(fd)
        with keyboard.listening(lambda: None):
            assert not is_echoing(fd)
            with keyboard.paused():
                assert termios.tcgetattr(fd) == before
            assert not is_echoing(fd)
    assert termios.tcgetattr(fd) == before


def test_a_question_gets_its_own_answer(terminal):
    end, fd = terminal
    with Keyboard(fd) as keyboard, keyboard.listening(lambda: None):
        os.write(end, b"before")
        block_until(lambda: keyboard.typed == "before")
        with keyboard.paused():
            os.write(end, b"yes\n")
            assert os.read(fd, 100) == b"yes\n"
        os.write(end, b" after")
        block_until(lambda: keyboard.typed == "before after")


def test_a_closed_terminal_ends_the_listening_quietly():
    end, fd = os.openpty()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Keyboard(fd) as keyboard, keyboard.listening(lambda: None):
            os.close(end)
            block_until(lambda: not any(each.name == "hookline-keyboard" for each in threading.enumerate()))
        assert keyboard.typed == ""
    finally:
        signal.signal(signal.SIGHUP, before)
        os.close(fd)
