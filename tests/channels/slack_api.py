"""A server that speaks the part of Slack's protocol that the channel uses, as its documentation describes it:
methods of the Web API, socket mode, and signed requests over HTTP."""

import asyncio
import hashlib
import hmac
import itertools
import json
import time
from urllib.parse import urlencode

from aiohttp import WSMsgType, web

TOKEN = "xoxb-1-secret-of-this-bot"
APP_TOKEN = "xapp-1-secret-of-this-app"
SIGNING_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
ME, ADA, BEN = "UBOT", "UADA", "UBEN"
DIRECT, CHANNEL = "D1", "C1"
_MAX_SECTION, _MAX_VALUE = 3000, 2000


class Refusal(Exception):
    def __init__(self, error, status=200, headers=None, **more):
        self.error, self.status, self.headers, self.more = error, status, headers or {}, more


class SlackApi:
    """People write; events are sent again, on the next connection, until they are acknowledged."""

    def __init__(self):
        self.chats = {DIRECT: {}, CHANNEL: {}}
        self.whispers, self.calls, self.failures, self.acknowledged = [], [], {}, []
        self.unacknowledged, self.sockets, self.tickets = {}, [], set()
        self._ids, self._sending = itertools.count(1), asyncio.Lock()
        self.organization = None
        self.files, self.downloads = {}, []
        self.runner = None

    async def __aenter__(self):
        await self.up()
        return self

    async def __aexit__(self, *_):
        await self.down()

    async def up(self, port=0):
        app = web.Application(client_max_size=10_000_000)
        app.router.add_route("*", "/api/{method}", self._call)
        app.router.add_get("/link", self._link)
        app.router.add_get("/files/{id}", self._download)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/api"

    async def down(self):
        if self.runner is not None:
            for socket in list(self.sockets):
                await socket.close()
            await self.runner.cleanup()
            self.runner = None

    def fail(self, method, error, status=200, times=1, headers=None, **more):
        """The next calls of a method fail so."""
        self.failures.setdefault(method, []).extend([Refusal(error, status, headers, **more)] * times)

    # what people do

    def _ts(self):
        return f"{1_700_000_000 + next(self._ids)}.000100"

    def event(self, text, chat=DIRECT, user=ADA, **fields):
        kind = "im" if chat.startswith("D") else "channel"
        event = {"type": "message", "channel": chat, "channel_type": kind, "user": user, "text": text, "ts": self._ts()}
        return {name: value for name, value in (event | fields).items() if value is not None}

    def events(self, event):
        """The events that Slack sends for a message: two if it mentions the bot in a channel."""
        if f"<@{ME}" in event.get("text", "") and event["channel_type"] != "im":
            mention = {name: value for name, value in event.items() if name != "channel_type"}
            return [{**mention, "type": "app_mention"}, event]
        return [event]

    async def say(self, text, chat=DIRECT, user=ADA, **fields):
        event = self.event(text, chat, user, **fields)
        for each in self.events(event):
            await self.happens(each)
        return event["ts"]

    async def happens(self, event):
        await self.envelope("events_api", event_body(event))

    async def envelope(self, kind, payload):
        id = f"envelope-{next(self._ids)}"
        self.unacknowledged[id] = {"type": kind, "envelope_id": id, "payload": payload}
        await self._send_pending(only=id)

    def press_body(self, chat, ts, label, user=ADA):
        """The request for a button of a message, found by its label."""
        message = self.chats[chat][ts]
        (button,) = [each for each in buttons(message) if each["text"]["text"] == label]
        action = {**{name: button[name] for name in ("type", "action_id", "value")}, "action_ts": self._ts()}
        container = {"type": "message", "message_ts": ts, "channel_id": chat}
        return {
            "type": "block_actions",
            "user": {"id": user},
            "team": {"id": "T1"},
            "channel": {"id": chat},
            "container": container,
            "message": {"ts": ts},
            "actions": [action],
        }

    async def press(self, chat, ts, label, user=ADA):
        await self.envelope("interactive", self.press_body(chat, ts, label, user))

    def texts(self, chat=DIRECT):
        """The texts as people see them."""
        return [shown(message) for message in self.chats[chat].values()]

    # socket mode

    async def _link(self, request):
        if request.query.get("ticket") not in self.tickets:
            raise web.HTTPForbidden
        self.tickets.discard(request.query["ticket"])  # an address can be used once
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"type": "hello", "num_connections": 1})
        self.sockets.append(socket)
        await self._send_pending()
        try:
            async for message in socket:
                if message.type == WSMsgType.TEXT:
                    id = json.loads(message.data)["envelope_id"]
                    if self.unacknowledged.pop(id, None) is not None:
                        self.acknowledged.append(id)
        finally:
            self.sockets.remove(socket)
        return socket

    async def _send_pending(self, only=None):
        async with self._sending:
            for id, envelope in list(self.unacknowledged.items()):
                if self.sockets and only in (None, id):
                    await self.sockets[-1].send_json({**envelope, "accepts_response_payload": False})

    async def send_again(self):
        """Slack repeats events that it believes to be lost."""
        await self._send_pending()

    async def refresh(self):
        """Slack asks for a new connection."""
        await self.sockets[-1].send_json({"type": "disconnect", "reason": "refresh_requested"})

    # the Web API

    async def _call(self, request):
        method, fields = request.match_info["method"], await self._fields(request)
        self.calls.append((method, fields))
        try:
            expected = APP_TOKEN if method == "apps.connections.open" else TOKEN
            if request.headers.get("Authorization") != f"Bearer {expected}":
                raise Refusal("invalid_auth")
            if self.failures.get(method):
                raise self.failures[method].pop(0)
            result = getattr(self, method.replace(".", "_").lower())(fields)
        except Refusal as refusal:
            body = {"ok": False, "error": refusal.error, **refusal.more}
            return web.json_response(body, status=refusal.status, headers=refusal.headers)
        return web.json_response({"ok": True, **result})

    async def _fields(self, request):
        if request.content_type == "application/json":
            return await request.json()
        return dict(await request.post()) | dict(request.query)

    def auth_test(self, fields):
        return {"user_id": ME, "bot_id": "BBOT", "user": "agent", "team_id": "T1", "enterprise_id": self.organization}

    def apps_connections_open(self, fields):
        ticket = str(next(self._ids))
        self.tickets.add(ticket)
        return {"url": f"ws://127.0.0.1:{self.port}/link?ticket={ticket}"}

    def chat_postmessage(self, fields):
        chat, ts = self._chat(fields), self._ts()
        self._check(fields)
        assert fields["unfurl_links"] in (False, "false", "0")
        assert fields["unfurl_media"] in (False, "false", "0")
        self.chats[chat][ts] = {**fields, "ts": ts, "edits": []}
        return {"channel": chat, "ts": ts}

    def chat_postephemeral(self, fields):
        self._chat(fields)
        self._check(fields)
        self.whispers.append((fields["user"], shown(fields), fields.get("thread_ts", "")))
        return {"message_ts": self._ts()}

    def chat_update(self, fields):
        message = self.chats[self._chat(fields)].get(fields["ts"])
        if message is None:
            raise Refusal("message_not_found")
        self._check(fields)
        message["edits"].append(shown(message))
        message.update({name: fields[name] for name in ("text", "blocks")})
        return {"ts": fields["ts"]}

    def files_info(self, fields):
        if fields["file"] not in self.files:
            raise Refusal("file_not_found")
        about = self.files[fields["file"]]
        url = f"http://127.0.0.1:{self.port}/files/{fields['file']}"
        return {"file": {"id": fields["file"], "url_private_download": url, "size": len(about["data"])} | about["more"]}

    async def _download(self, request):
        self.downloads.append(request.headers.get("Authorization"))
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise web.HTTPFound("https://example.com/login")
        return web.Response(body=self.files[request.match_info["id"]]["data"])

    def share(self, id, data, **more):
        """A person shared a file; ``more`` are further fields that Slack says about it."""
        self.files[id] = {"data": data, "more": more}
        return {"id": id, "name": f"{id}.png", "filetype": "png", "size": len(data)}

    def _chat(self, fields):
        if fields["channel"] not in self.chats:
            raise Refusal("channel_not_found")
        return fields["channel"]

    def _check(self, fields):
        """Reject what Slack's documentation rejects."""
        fields["blocks"] = json.loads(fields["blocks"]) if isinstance(fields["blocks"], str) else fields["blocks"]
        if not fields["text"].strip() or any(mark in fields["text"] for mark in "<>"):
            raise Refusal("no_text")
        for block in fields["blocks"]:
            assert block["type"] in ("rich_text", "actions")
            if not block["elements"]:
                raise Refusal("invalid_blocks")
            for element in block["elements"]:
                if block["type"] == "actions":
                    if len(element["value"]) > _MAX_VALUE or len(element["text"]["text"]) > 75:
                        raise Refusal("invalid_blocks")
                    continue
                assert element["type"] in ("rich_text_section", "rich_text_preformatted")
                if not element["elements"] or any(each.get("text") == "" for each in element["elements"]):
                    raise Refusal("invalid_blocks")
        if len(shown(fields)) > _MAX_SECTION + 500:
            raise Refusal("msg_blocks_too_long")


def event_body(event):
    return {
        "type": "event_callback",
        "team_id": "T1",
        "api_app_id": "A1",
        "event_id": f"Ev{event.get('ts')}{event['type']}",
        "event_time": 1_700_000_000,
        "event": event,
        "authorizations": [{"team_id": "T1", "user_id": ME, "is_bot": True}],
    }


def shown(message):
    """The text of a message as people see it, with code in backticks and people as @ID."""
    lines = []
    for block in message["blocks"]:
        if block["type"] != "rich_text":
            continue
        for element in block["elements"]:
            text = "".join(_shown(each) for each in element["elements"])
            lines.append(f"```\n{text}\n```" if element["type"] == "rich_text_preformatted" else text)
    return "\n".join(lines)


def _shown(element):
    match element["type"]:
        case "user":
            return f"@{element['user_id']}"
        case "link":
            return element["url"]
        case _:
            style = element.get("style", {})
            return f"`{element['text']}`" if style.get("code") else element["text"]


def buttons(message):
    return [each for block in message["blocks"] if block["type"] == "actions" for each in block["elements"]]


def signed(payload, *, form=False, secret=SIGNING_SECRET, age=0):
    """The arguments of an HTTP request of Slack."""
    body = urlencode({"payload": json.dumps(payload)}) if form else json.dumps(payload)
    when = str(int(time.time()) - age)
    signature = "v0=" + hmac.new(secret.encode(), f"v0:{when}:{body}".encode(), hashlib.sha256).hexdigest()
    kind = "application/x-www-form-urlencoded" if form else "application/json"
    headers = {"Content-Type": kind, "X-Slack-Request-Timestamp": when, "X-Slack-Signature": signature}
    return {"content": body, "headers": headers}
