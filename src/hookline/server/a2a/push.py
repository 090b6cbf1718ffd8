"""Telling receivers how a task goes on, by posting it to their URLs."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from a2a.compat.v0_3.conversions import to_compat_task
from a2a.types import AuthenticationInfo, StreamResponse, Task, TaskPushNotificationConfig
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import MessageToDict

from ..._base.text import error_text
from ..._base.workers import in_thread
from ..._kernel.errors import HooklineError, RegistrationError
from ..._net.egress import Egress, EgressError, post
from ..._net.http_client import Cutoff, FetchError
from ..._net.urls import UrlError, parse_host, parse_url
from ...stores.errors import StoreError
from ...stores.push_subscriptions import PushSubscription, PushSubscriptionStore
from ...stores.runs import RunRecord
from ..callers import Caller
from ..errors import Busy, UnknownRunError
from ..service import RunService
from .following import Following

log = logging.getLogger("hookline")

MAX_RECEIVERS = 8
"""How many receivers a task may have."""
SECONDS = 10.0
"""How long one post may take."""
PAUSES = (0.5, 2.0, 8.0)
"""Seconds before a post is tried again."""

_MYSELF = Caller("push", "push", frozenset(("read", "admin")))
_ID = re.compile(r"[!-~]{1,128}")
_SECRET = re.compile(r"[ -~]{0,4096}")
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{0,64}")
_LATER = frozenset((408, 409, 425, 429))


class Push:
    """Posts tasks to receivers: at each change of state, in order, and never in the way of the run itself.

    Only public addresses are posted to, and hosts that are listed; the address that was judged is the one that is
    connected to. Receivers are kept beside the runs: what a program could not send, the next one does.

    Args:
        service: whose runs.
        store: where receivers are kept.
        hosts: names or addresses that may be posted to though they are not public.
        seconds: how long one post may take.
        pauses: seconds before each further try.
    """

    def __init__(
        self, service: RunService, store: PushSubscriptionStore, *, hosts: Sequence[str] = (), seconds: float = SECONDS,
        pauses: Sequence[float] = PAUSES,
    ) -> None:  # fmt: skip
        self._service, self._store = service, store
        self._hosts = frozenset(parse_host(f"[{host}]" if host.count(":") > 1 else host)[0] for host in hosts)
        self._seconds, self._pauses = seconds, tuple(pauses)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Go on with what an earlier program could not send.

        Raises:
            StoreError: the file cannot be used.
        """
        for row in await asyncio.to_thread(self._store.claim_abandoned):
            self._begin(row)

    async def close(self, grace: float = 2.0) -> None:
        """Send what is left, for so many seconds."""
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    # Receivers.

    async def check(self, config: TaskPushNotificationConfig) -> None:
        """See whether somebody can be told there.

        Raises:
            InvalidParamsError: the URL is not one to post to, or what comes with it cannot be sent.
        """
        proof = config.authentication
        for name, text, form in (
            ("id", config.id or "x", _ID), ("token", config.token, _SECRET), ("scheme", proof.scheme, _SCHEME),
            ("credentials", proof.credentials, _SECRET),
        ):  # fmt: skip
            if not form.fullmatch(text):
                raise InvalidParamsError(f"{name} of a push notification is too long, or not plain ASCII")
        try:
            await in_thread(self._look_up, config.url)
        except (EgressError, FetchError, UrlError, RegistrationError):
            raise InvalidParamsError(
                "this URL cannot be used for push notifications: give one with http or https, without a user name, "
                "whose host leads to public addresses alone"
            ) from None

    async def put(
        self, run: RunRecord, config: TaskPushNotificationConfig, caller: Caller, version: str, *, new: bool = False
    ) -> TaskPushNotificationConfig:
        """Keep a receiver that was checked, and tell it of what comes; at once of a run that is over already.

        Raises:
            InvalidParamsError: there are too many.
            StoreError: the file cannot be used.
        """
        proof = config.authentication
        seq = 1 if new else run.last_seq - 1 if run.is_over else run.last_seq
        row = PushSubscription(
            run.id, config.id or run.id, caller.id, config.url, config.token, proof.scheme, proof.credentials, version,
            time.time(), seq,
        )  # fmt: skip
        if not await asyncio.to_thread(self._store.save, row, MAX_RECEIVERS):
            raise InvalidParamsError(f"a task has at most {MAX_RECEIVERS} push notification configs: delete one")
        self._begin(row)
        return _config(row, caller)

    async def list(self, run: RunRecord, caller: Caller) -> list[TaskPushNotificationConfig]:
        """The receivers of a task; secrets only for whoever gave them.

        Raises:
            StoreError: the file cannot be used.
        """
        return [_config(row, caller) for row in await asyncio.to_thread(self._store.for_run, run.id)]

    async def delete(self, run: RunRecord, id: str) -> bool:
        """Tell a receiver no more; false if there is none.

        Raises:
            StoreError: the file cannot be used.
        """
        task = self._tasks.get((run.id, id))
        if task is not None:
            task.cancel()
        return await asyncio.to_thread(self._store.delete, run.id, id)

    # Telling them.

    def _begin(self, row: PushSubscription) -> None:
        key = row.run_id, row.id
        if key in self._tasks:
            self._tasks[key].cancel()
        task = self._tasks[key] = asyncio.create_task(self._tell(row), name=f"hookline-push-{row.run_id}")
        task.add_done_callback(lambda done: self._tasks.pop(key) if self._tasks.get(key) is done else None)

    async def _tell(self, row: PushSubscription) -> None:
        while True:
            try:
                await self._follow(row)
                return
            except Busy as busy:
                await asyncio.sleep(busy.retry_after)
            except UnknownRunError:
                return  # it is gone, and its receivers with it
            except HooklineError as error:
                log.error("nobody is told of the run %s: %s", row.run_id, error_text(error))
                return

    async def _follow(self, row: PushSubscription) -> None:
        run = await self._service.get(row.run_id, _MYSELF)
        reader = await self._service.read(row.run_id, _MYSELF)
        try:
            following = Following(run, reader, self._service.approvals)
            story, before = following.story, (following.story.state, frozenset[Any]())
            while not story.over and (page := await following.page()) is not None:
                for event in page[0]:
                    story.take([event], page[1])
                    now = story.state, frozenset(story.waiting)
                    if now != before and event.seq > row.seq:
                        await self._send(row, story.task())
                        await self._sent(row, event.seq, over=story.over)
                    before = now
            if story.over:  # else the run goes on in another program, and this one stops: the next one tells
                await self._sent(row, story.seq, over=True)
        finally:
            reader.close()

    async def _sent(self, row: PushSubscription, seq: int, *, over: bool) -> None:
        try:
            await asyncio.to_thread(self._store.mark_delivered, row, seq, done=over)
        except StoreError as error:  # it is told once more after a restart
            log.error("what was told of the run %s is not stored: %s", row.run_id, error_text(error))

    async def _send(self, row: PushSubscription, task: Task) -> None:
        """Post a task, more than once if need be; a receiver that does not take it misses it."""
        headers = {"Content-Type": "application/json", "User-Agent": "hookline"}
        if row.token:
            headers["X-A2A-Notification-Token"] = row.token
        if row.scheme and row.credentials:
            headers["Authorization"] = f"{row.scheme} {row.credentials}"
        body, problem = _body(row, task), ""
        for pause in (*self._pauses, None):
            try:
                answer = await post(self._egress(row.url), row.url, body, headers=headers, seconds=self._seconds)
                if 200 <= answer.status < 300:
                    return
                problem = f"it answered {answer.status}"
                if 300 <= answer.status < 500 and answer.status not in _LATER:
                    break
            except EgressError:
                problem = "its address may not be reached any more"
                break
            except (FetchError, UrlError, RegistrationError) as error:
                problem = type(error).__name__ if isinstance(error, UrlError) else error_text(error)
            if pause is not None:
                await asyncio.sleep(pause)
        log.warning("the receiver %s of the run %s was not told: %s", ascii(row.id), row.run_id, ascii(problem)[:300])

    def _egress(self, url: str) -> Egress:
        """Who may be posted to under this URL: a listed host wherever it leads, any other only at public addresses."""
        where = parse_url(url)
        if where.host in self._hosts:
            return Egress([where.origin], private=True)
        return Egress([f"{where.scheme}://*:{where.port}"])

    def _look_up(self, url: str) -> None:
        egress = self._egress(url)
        where = egress.judge(url)
        with Cutoff(self._seconds) as cutoff:
            if where.address is None:
                cutoff.bounded(egress.resolve, where)
            else:
                egress.resolve(where)


def _body(row: PushSubscription, task: Task) -> bytes:
    if row.version == "0.3":
        return to_compat_task(task).model_dump_json(by_alias=True, exclude_none=True).encode()
    return msgspec.json.encode(MessageToDict(StreamResponse(task=task)))


def _config(row: PushSubscription, caller: Caller) -> TaskPushNotificationConfig:
    config = TaskPushNotificationConfig(id=row.id, task_id=row.run_id, url=row.url)
    if row.owner != caller.id:
        return config
    config.token = row.token
    if row.scheme or row.credentials:
        config.authentication.CopyFrom(AuthenticationInfo(scheme=row.scheme, credentials=row.credentials))
    return config
