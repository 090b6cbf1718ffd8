"""Start a run and watch it: server-sent events, with nothing but the standard library.

    python watch.py "Deploy the shop."

HOOKLINE_URL says where the server is, if not at http://127.0.0.1:8420, and HOOKLINE_KEY is a key, where one is needed.
The connection may break at any time: it comes back with the number of the last event, and goes on from there.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

URL = os.environ.get("HOOKLINE_URL", "http://127.0.0.1:8420")
KEY = os.environ.get("HOOKLINE_KEY", "")


def ask(path: str, body: Any = None, **headers: str) -> Any:
    """Send a request; the answer, which is still to be read."""
    headers |= {"Authorization": f"Bearer {KEY}"} if KEY else {}
    data = None if body is None else json.dumps(body).encode()
    headers |= {} if data is None else {"Content-Type": "application/json"}
    return urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=60)


def events(run: str) -> Iterator[dict[str, Any]]:
    """Every event of a run, once, until it is over."""
    last = 0
    while True:
        try:
            with ask(f"/runs/{run}/events", Accept="text/event-stream", **{"Last-Event-ID": str(last)}) as stream:
                for line in stream:
                    if not line.startswith(b"data: "):
                        continue
                    event = json.loads(line[6:])
                    last = event["seq"]
                    yield event
                    if event["type"] == "run_closed":
                        return
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(1)  # the server is away: it will be back


def told(event: dict[str, Any]) -> str:
    """An event in words; empty if it is not worth a line."""
    match event["type"]:
        case "tool_progressed" | "tool_ended":
            return str(event["message"])
        case "approval_asked":
            call = f"{event['tool']} {json.dumps(event['arguments'])}"
            return f"{call} waits for approval: hookline approvals shows it in another terminal"
        case "approval_decided":
            return f"{event['decision']} by {event['by']}"
        case "run_closed":
            return f"{event['status']}: {event['reply'] or event['error'] or event['reason']}"
    return ""


def main() -> None:
    """Start a run, and tell what happens in it."""
    with ask("/runs", {"task": " ".join(sys.argv[1:]) or "Which version of the shop runs?"}) as answer:
        run = json.load(answer)
    print(f"{run['id']} is {run['status']}")
    for event in events(run["id"]):
        if line := told(event):
            print(f"{event['seq']:>4}  {line}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except urllib.error.HTTPError as refused:
        sys.exit(f"{refused.code}: {json.load(refused)['error']['message']}")
    except urllib.error.URLError as error:
        sys.exit(f"there is no server at {URL}: {error.reason}")
