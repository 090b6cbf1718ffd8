"""Start a run and follow its server-sent events, with the standard library only.

    python watch.py "Deploy the shop."

Set HOOKLINE_URL if the server is not at http://127.0.0.1:8420, and HOOKLINE_KEY if it needs a key.
If the connection breaks, the program reconnects and continues after the last event.
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
    """Send a request and return the open response."""
    headers |= {"Authorization": f"Bearer {KEY}"} if KEY else {}
    data = None if body is None else json.dumps(body).encode()
    headers |= {} if data is None else {"Content-Type": "application/json"}
    return urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=60)


def events(run: str) -> Iterator[dict[str, Any]]:
    """Yield every event of a run once, until the run ends."""
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
            time.sleep(1)  # the server is unreachable: try again


def describe(event: dict[str, Any]) -> str:
    """Describe an event; empty for events that are not shown."""
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
    """Start a run and print what happens."""
    with ask("/runs", {"task": " ".join(sys.argv[1:]) or "Which version of the shop runs?"}) as answer:
        run = json.load(answer)
    print(f"{run['id']} is {run['status']}")
    for event in events(run["id"]):
        if line := describe(event):
            print(f"{event['seq']:>4}  {line}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {json.load(error)['error']['message']}")
    except urllib.error.URLError as error:
        sys.exit(f"there is no server at {URL}: {error.reason}")
