"""Measure how fast clean text is scanned for sensitive data of all kinds, and how the time of a stream grows."""

import json
import random
import re
import time
from pathlib import Path

from hookline.hooks import Redactor, find_sensitive

TEXT = """
the of and to in is that it was for on are with as his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over did down
information understand together important different government
"""
WORDS = re.findall(r"\w+", TEXT)


def prose(size: int) -> str:
    """Return English sentences with occasional years and prices."""
    pick, out, length = random.Random(1), [], 0
    while length < size:
        words = [pick.choice(WORDS) for _ in range(pick.randrange(6, 18))]
        if pick.random() < 0.1:
            words.append(pick.choice(["in 2024", "for 12.50 dollars", "at 10:30", "on page 117"]))
        out.append(" ".join(words).capitalize() + pick.choice([". ", ". ", "? ", ".\n\n"]))
        length += len(out[-1])
    return "".join(out)[:size]


def code(size: int) -> str:
    """Return the source of Hookline, without the modules that contain such values."""
    import hookline

    root = Path(hookline.__file__).parent
    about = {"credentials.py", "numbers.py", "secrets.py"}
    files = [path.read_text() for path in sorted(root.rglob("*.py")) if path.name not in about]
    text = "".join(files)
    return (text * (size // len(text) + 1))[:size]


def logs(size: int) -> str:
    """Return JSON lines with times, ids, sizes and durations."""
    pick, out, length, n = random.Random(2), [], 0, 0
    while length < size:
        n += 1
        line = {
            "time": f"2026-01-{n % 28 + 1:02}T{n % 24:02}:{n % 60:02}:{n % 60:02}.{n % 1000:03}Z",
            "epoch": 1768000000000 + n,
            "level": "info",
            "logger": "shop.orders",
            "message": f"order {pick.randrange(10**8)} packed in {pick.randrange(1, 9)} parcels",
            "request": f"{pick.getrandbits(32):08x}-{pick.getrandbits(16):04x}-4{pick.getrandbits(12):03x}-a000-"
            f"{pick.getrandbits(48):012x}",
            "path": f"/api/v1/orders/{pick.randrange(10**8)}/items/{pick.randrange(100)}",
            "status": 200,
            "bytes": pick.randrange(10**7),
            "ms": round(pick.random() * 100, 3),
        }
        out.append(json.dumps(line) + "\n")
        length += len(out[-1])
    return "".join(out)[:size]


def speeds(reps: int, size: int) -> dict[str, list[float]]:
    """Return megabytes per second of CPU time, by kind of text, per repetition."""
    texts = {"English prose": prose(size), "code": code(size), "JSON logs with many digits": logs(size)}
    out: dict[str, list[float]] = {name: [] for name in texts}
    for _ in range(reps):
        for name, text in texts.items():
            began = time.process_time()
            find_sensitive(text)
            out[name].append(len(text) / (time.process_time() - began) / 1e6)
    return out


HELD_BACK = {
    "English prose": "",
    "digits with spaces": "1 ",
    "invisible characters": "\u200b ",
    "an open quote": "password='a ",
    "a private key without an end": "-----BEGIN PRIVATE KEY-----\nAb1/Ab1/Ab1/Ab1/\n",
    "a cookie header without an end": "cookie: a=b; ",
    "telephone numbers": "+1 1 1 1 1 1 1 1 1 1 1 ",
    "bank accounts": "AB12 3456 7890 1234 5678 90 ",
}
"""Texts that are hard for a stream, as pieces to repeat."""


def stream_seconds(size: int, larger: int) -> dict[str, tuple[float, float]]:
    """Return the CPU time of two sizes of text, each streamed in pieces of 4 characters, by kind of text."""
    redactor = Redactor()
    redactor.apply("4111 1111 1111 1111, +49 30 1234567, DE89 3704 0044 0532 0130 00")  # imports the libraries
    out = {}
    for name, piece in HELD_BACK.items():
        times = []
        for length in (size, larger):
            text = (piece * (length // len(piece) + 1))[:length] if piece else prose(length)
            stream, began = redactor.stream(), time.process_time()
            for at in range(0, length, 4):
                stream.feed(text[at : at + 4])
            stream.finish()
            times.append(time.process_time() - began)
        out[name] = (times[0], times[1])
    return out
