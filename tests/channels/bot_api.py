"""A server that speaks the part of Telegram's Bot API that the channel uses, as its documentation describes it."""

import asyncio
import json
from urllib.parse import parse_qsl

TOKEN = "4711:AAsecret-token_of_this_bot"
ME = {"id": 4711, "is_bot": True, "first_name": "Agent", "username": "Agent_Bot"}
ANNA = {"id": 7, "is_bot": False, "first_name": "Anna", "username": "anna"}
PRIVATE = {"id": 7, "type": "private", "first_name": "Anna"}
GROUP = {"id": -100, "type": "supergroup", "title": "Garden", "is_forum": True}


class Refusal(Exception):
    def __init__(self, code, description, **parameters):
        super().__init__(description)
        self.code, self.description, self.parameters = code, description, parameters


class BotApi:
    """Updates wait until an ``offset`` confirms them; of two polls at once the older is ended."""

    def __init__(self):
        self.updates, self.calls, self.failures, self.chats = [], [], {}, {PRIVATE["id"]: {}, GROUP["id"]: {}}
        self.files = {}
        self.next_update, self.next_message, self.webhook, self.polls = 100, 1, False, 0
        self.changed = asyncio.Condition()
        self._open = {}

    async def __aenter__(self):
        await self.up()
        return self

    async def up(self, port=0):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def down(self):
        self.server.close()
        for task, writer in self._open.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self.server.wait_closed()

    async def __aexit__(self, *exc):
        await self.down()

    def fail(self, method, code, description, times=1, **parameters):
        """The next calls of a method fail so."""
        self.failures.setdefault(method, []).extend([Refusal(code, description, **parameters)] * times)

    async def happens(self, **update):
        async with self.changed:
            self.updates.append({"update_id": self.next_update, **update})
            self.next_update += 1
            self.changed.notify_all()

    def message(self, text=None, chat=PRIVATE, sender=ANNA, **fields):
        self.next_message += 1
        message = {"message_id": self.next_message, "date": 1_700_000_000, "chat": chat, **fields}
        message |= {"from": sender} if sender else {}
        return message | ({"text": text} if text is not None else {})

    async def say(self, text=None, chat=PRIVATE, sender=ANNA, **fields):
        """Someone sends a message."""
        message = self.message(text, chat, sender, **fields)
        await self.happens(message=message)
        return str(message["message_id"])

    def texts(self, chat=PRIVATE["id"]):
        return [message["text"] for message in self.chats[chat].values()]

    # the methods of the Bot API

    async def getme(self, fields):
        return ME

    async def getupdates(self, fields):
        if self.webhook:
            raise Refusal(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook")
        self.polls += 1
        mine = self.polls
        async with self.changed:
            self.changed.notify_all()
            offset = int(fields.get("offset", 0))
            self.updates = [update for update in self.updates if update["update_id"] >= offset]
            try:
                async with asyncio.timeout(float(fields.get("timeout", 0))):
                    await self.changed.wait_for(lambda: self.updates or self.polls > mine)
            except TimeoutError:
                return []
            if self.polls > mine and not self.updates:
                raise Refusal(409, "Conflict: terminated by other getUpdates request; make sure that only one runs")
            return self.updates[: int(fields.get("limit", 100))]

    async def sendmessage(self, fields):
        chat, text = self._chat(fields), fields.get("text", "")
        if not text.strip():
            raise Refusal(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > 4096:
            raise Refusal(400, "Bad Request: message is too long")
        message = {**self.message(text, {"id": chat, "type": "private"}, ME), "asked": fields}
        self.chats[chat][str(message["message_id"])] = message
        return {name: value for name, value in message.items() if name != "asked"}

    async def editmessagetext(self, fields):
        message = self.chats[self._chat(fields)].get(fields["message_id"])
        if message is None:
            raise Refusal(400, "Bad Request: message to edit not found")
        if message["text"] == fields["text"]:
            raise Refusal(400, "Bad Request: message is not modified: specified new message content is the same")
        message["text"] = fields["text"]
        return {name: value for name, value in message.items() if name != "asked"}

    async def sendchataction(self, fields):
        self._chat(fields)
        return True

    async def getfile(self, fields):
        if fields["file_id"] not in self.files:
            raise Refusal(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        data = self.files[fields["file_id"]]
        about = {"file_id": fields["file_id"], "file_unique_id": "u", "file_size": len(data)}
        return {**about, "file_path": f"files/{fields['file_id']}"}

    def _chat(self, fields):
        if int(fields["chat_id"]) not in self.chats:
            raise Refusal(400, "Bad Request: chat not found")
        return int(fields["chat_id"])

    # HTTP

    async def _serve(self, reader, writer):
        self._open[asyncio.current_task()] = writer
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
                status, answer = await self._answer(first.split()[1], fields)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
                writer.write(head.encode() + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            del self._open[asyncio.current_task()]
            writer.close()

    async def _answer(self, path, fields):
        prefix, _, method = path.rpartition("/")
        if prefix == f"/file/bot{TOKEN}/files":
            return 200, self.files[method]
        method = method.lower()
        if prefix != f"/bot{TOKEN}":
            return 401, {"ok": False, "error_code": 401, "description": "Unauthorized"}
        self.calls.append((method, fields))
        try:
            if self.failures.get(method):
                raise self.failures[method].pop(0)
            return 200, {"ok": True, "result": await getattr(self, method)(fields)}
        except Refusal as error:
            answer = {"ok": False, "error_code": error.code, "description": error.description}
            return error.code, answer | ({"parameters": error.parameters} if error.parameters else {})
