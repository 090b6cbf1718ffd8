"""Logs are read line by line: their size does not matter, and neither does a line without an end."""

import json
import subprocess
import sys

import pytest

from hookline.importers import import_logs, logs

TALK = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


def test_a_very_long_line_is_skipped_and_the_rest_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "MAX_LINE", 2000)
    monkeypatch.setattr(logs, "_CHUNK", 300)
    (tmp_path / "log.jsonl").write_text(f"{json.dumps(TALK)}\n{'x' * 9000}\n{json.dumps(TALK)}\n")
    report = import_logs("openai", [tmp_path / "log.jsonl"], tmp_path / "out.moments")
    assert report.runs == 2
    assert report.lines == 3
    assert [(each.first, each.count) for each in report.skipped] == [(2, 1)]
    assert "longer than" in report.skipped[0].reason


def test_a_file_that_cannot_be_opened_is_reported_and_the_others_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(TALK))
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "b.jsonl")  # a cycle of links
    report = import_logs("openai", [tmp_path], tmp_path / "out.moments")
    assert report.runs == 1
    assert [each.reason.partition(":")[0] for each in report.skipped] == ["the file cannot be read"]


MEASURE = """
import resource, sys
from hookline.importers import import_logs, logs
report = import_logs(sys.argv[1], sys.argv[2:3], sys.argv[3])
print(report.runs, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def claude_code(number):
    common = {"sessionId": "s", "timestamp": "2026-11-02T10:00:00Z"}
    yield {**common, "type": "user", "uuid": f"u{number}", "message": {"content": f"Task {number}"}}
    content = [{"type": "text", "text": "word " * 1000}]
    reply = {"id": f"m{number}", "model": "m", "content": content}
    yield {**common, "type": "assistant", "uuid": f"a{number}", "parentUuid": f"u{number}", "message": reply}


def openai(number):
    yield {
        "messages": [{"role": "user", "content": f"Task {number}"}, {"role": "assistant", "content": "word " * 1000}]
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", [claude_code, openai])
def test_the_memory_of_an_import_does_not_grow_with_the_log(kind, tmp_path):
    peaks = []
    for count in (200, 10_000):  # 1 MB and 50 MB
        path = tmp_path / f"{count}.jsonl"
        with path.open("w") as file:
            file.writelines(json.dumps(line) + "\n" for number in range(count) for line in kind(number))
        command = [sys.executable, "-c", MEASURE, kind.__name__.replace("_", "-"), path, tmp_path / f"{count}.moments"]
        runs, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert int(runs) == count
        peaks.append(int(peak))
    assert peaks[1] < peaks[0] + 20
