"""Ask a server one question after another in each of several sessions, over one connection each, and print the figures.

python bench/probes/decide_client.py KIND ADDRESS SESSIONS QUESTIONS
"""

import asyncio
import json
import sys
import time

CALL = {"name": "send_mail", "arguments": {"to": "ann", "text": "The report is ready."}}


def request(session: str, number: int) -> bytes:
    """Return a question about a call, and then one about its result, as HTTP."""
    payload = {"id": f"call_{number // 2}", **CALL}
    point = "after_tool" if number % 2 else "before_tool"
    given = {**payload, "result": "sent", "duration": 0.1} if number % 2 else payload
    body = json.dumps({"point": point, "session": session, "payload": given}).encode()
    lines = (
        "POST /decide HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: bytes) -> float:
    """Return the seconds until the answer is there."""
    began = time.perf_counter()
    writer.write(question)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    answer = await reader.readexactly(int(length.partition(b":")[2]))
    took = time.perf_counter() - began
    assert head.startswith(b"HTTP/1.1 200"), answer
    assert b'"action":"allow"' in answer, answer
    return took


async def session(kind: str, address: str, name: str, questions: int) -> list[float]:
    """Ask in one session."""
    if kind == "socket":
        reader, writer = await asyncio.open_unix_connection(address)
    else:
        host, _, port = address.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for number in range(4):  # opens the run
            await ask(reader, writer, request(name, number))
        return [await ask(reader, writer, request(name, number)) for number in range(4, 4 + questions)]
    finally:
        writer.close()


async def main(kind: str, address: str, sessions: int, questions: int) -> None:
    """Ask, and print how long it took."""
    began = time.perf_counter()
    taken = await asyncio.gather(*(session(kind, address, f"s{number}", questions) for number in range(sessions)))
    print(json.dumps({"took": time.perf_counter() - began, "each": sorted(each for one in taken for each in one)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
