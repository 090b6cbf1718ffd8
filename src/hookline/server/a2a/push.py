"""Push notifications: post tasks to the URLs of receivers whenever their state changes."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
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
from ..._net.urls import UrlError, parse_url
from ..._web.middleware import Scope
from ...stores.callers import Caller
from ...stores.errors import StoreError
from ...stores.push_subscriptions import PushSubscription, PushSubscriptionStore
from ...stores.runs import RunRecord
from ..errors import BusyError, UnknownRunError
from ..runs import RunService
from .context import RequestContext, may_see
from .history import History
from .tasks import TaskFollower

log = logging.getLogger("hookline")

MAX_RECEIVERS = 8
"""Maximum number of receivers of a task."""
POST_SECONDS = 10.0
"""Time limit for one request, in seconds."""
ACCESS_RETRY_SECONDS = 2.0
"""Interval in seconds at which the access of a caller is checked again if it could not be read."""
RETRY_PAUSES = (0.5, 2.0, 8.0)
"""Seconds to wait before each retry."""

_SELF = Caller("push", "push", frozenset(("read", "admin")))
_ID = re.compile(r"[!-~]{1,128}")
_SECRET = re.compile(r"[ -~]{0,4096}")
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{0,64}")
_RETRY_STATUSES = frozenset((408, 409, 425, 429))


class _AccessLostError(Exception):
    """The caller who registered a receiver no longer has access to the run."""


class PushNotifier:
    """Post tasks to receivers at each change of state, in order, without delaying the run.

    Receivers must have public addresses, or be listed; the connection goes to the address that was checked. They are
    stored with the runs: notifications that a process could not send are sent by the next one. Before each post, the
    caller who registered the receiver must still have the rights that registering it takes; otherwise it is removed.

    Args:
        service: runs the agents.
        store: the store of receivers.
        history: has the messages of callers.
        current_caller: returns a caller with its present rights, given its id and the request in which it registered
            the receiver; see :meth:`Authenticator.current_caller`.
        hosts: parsed names or addresses that are allowed although they are not public.
        seconds: the time limit for one request.
        pauses: how many seconds to wait before each retry.
    """

    def __init__(
        self,
        service: RunService,
        store: PushSubscriptionStore,
        history: History,
        current_caller: Callable[[str, Scope | None], Awaitable[Caller | None]],
        *,
        hosts: Collection[str] = (),
        seconds: float = POST_SECONDS,
        pauses: Sequence[float] = RETRY_PAUSES,
    ) -> None:
        self._service = service
        self._store = store
        self._history = history
        self._current_caller = current_caller
        self._hosts = hosts
        self._seconds = seconds
        self._pauses = tuple(pauses)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def resume(self, rows: Iterable[PushSubscription]) -> None:
        """Send what other processes could not send to these receivers, which this process has claimed."""
        for row in rows:
            self._start(row)

    async def close(self, grace: float = 2.0) -> None:
        """Send the remaining notifications, for at most ``grace`` seconds; other processes may send the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace)
        if left := dict(self._tasks):
            for task in left.values():
                task.cancel()
            await asyncio.wait(left.values())
            await self._release(left)

    # Receivers

    async def check(self, config: TaskPushNotificationConfig) -> None:
        """Check whether a receiver can be used.

        Raises:
            InvalidParamsError: the URL is not allowed, or a token or credential cannot be sent in a header.
        """
        auth = config.authentication
        for name, text, pattern in (
            ("id", config.id or "x", _ID),
            ("token", config.token, _SECRET),
            ("scheme", auth.scheme, _SCHEME),
            ("credentials", auth.credentials, _SECRET),
        ):
            if not pattern.fullmatch(text):
                raise InvalidParamsError(f"{name} of a push notification config is too long, or not printable ASCII")
        try:
            await in_thread(self._check_url, config.url)
        except (EgressError, FetchError, UrlError, RegistrationError):
            raise InvalidParamsError(
                "this URL cannot be used for push notifications: it must be an http or https URL without a user name, "
                "and its host must resolve to public addresses only"
            ) from None

    async def put(
        self,
        run: RunRecord,
        config: TaskPushNotificationConfig,
        request: RequestContext,
        version: str,
        *,
        new: bool = False,
    ) -> TaskPushNotificationConfig:
        """Store a checked receiver of the caller of a request and start to notify it, at once if the run has finished.

        Raises:
            InvalidParamsError: the task has too many receivers.
            StoreError: the file cannot be used.
        """
        auth = config.authentication
        seq = 1 if new else run.last_seq - 1 if run.is_over else run.last_seq
        row = PushSubscription(
            run.id,
            config.id or run.id,
            request.caller.id,
            config.url,
            config.token,
            auth.scheme,
            auth.credentials,
            version,
            time.time(),
            seq,
        )
        if not await asyncio.to_thread(self._store.save, row, MAX_RECEIVERS):
            raise InvalidParamsError(f"a task can have at most {MAX_RECEIVERS} push notification configs: delete one")
        self._start(row, request.scope)
        return _to_config(row, request.caller)

    async def list(self, run: RunRecord, caller: Caller) -> list[TaskPushNotificationConfig]:
        """Return the receivers of a task. Only the caller that added a receiver sees its secrets.

        Raises:
            StoreError: the file cannot be used.
        """
        return [_to_config(row, caller) for row in await asyncio.to_thread(self._store.for_run, run.id)]

    async def delete(self, run: RunRecord, id: str) -> None:
        """Delete a receiver, if there is one with this id.

        Raises:
            StoreError: the file cannot be used.
        """
        task = self._tasks.get((run.id, id))
        if task is not None:
            task.cancel()
        await asyncio.to_thread(self._store.delete, run.id, id)

    # Sending

    def _start(self, row: PushSubscription, scope: Scope | None = None) -> None:
        key = row.run_id, row.id
        if key in self._tasks:
            self._tasks[key].cancel()
        task = self._tasks[key] = asyncio.create_task(self._notify(row, scope), name=f"hookline-push-{row.run_id}")
        task.add_done_callback(lambda done: self._tasks.pop(key) if self._tasks.get(key) is done else None)

    async def _notify(self, row: PushSubscription, scope: Scope | None) -> None:
        while True:
            try:
                await self._follow(row, scope)
                return
            except _AccessLostError:
                log.warning(
                    "the receiver %s of the run %s was removed: %s, who registered it, no longer has access to the run",
                    ascii(row.id),
                    row.run_id,
                    ascii(row.owner),
                )
                await self._remove(row)
                return
            except BusyError as busy:
                await asyncio.sleep(busy.retry_after)
            except UnknownRunError:
                return  # the run was deleted, and its receivers with it
            except HooklineError as error:
                log.error("push notifications for the run %s have stopped: %s", row.run_id, error_text(error))
                return

    async def _remove(self, row: PushSubscription) -> None:
        try:
            await asyncio.to_thread(self._store.remove, row)
        except StoreError as error:  # the next process checks the access again
            log.error("a receiver of the run %s could not be removed: %s", row.run_id, error_text(error))

    async def _follow(self, row: PushSubscription, scope: Scope | None) -> None:
        run = await self._service.get(row.run_id, _SELF)
        reader = await self._service.read(row.run_id, _SELF)
        try:
            follower = TaskFollower(run, reader, self._service.approvals, self._history, _SELF)
            progress, before = follower.progress, (follower.progress.state, frozenset[Any]())
            while not progress.over and (page := await follower.next_page()) is not None:
                for event in page[0]:
                    progress.add_events([event], page[1])
                    now = progress.state, frozenset(progress.waiting)
                    if now != before and event.seq > row.seq:
                        await self._send(row, scope, await follower.task())
                        await self._mark_sent(row, event.seq, over=progress.over)
                    before = now
            if progress.over:
                await self._mark_sent(row, progress.seq, over=True)
            else:  # the run goes on in another process, and this one stops
                await self._release([(row.run_id, row.id)])
        finally:
            reader.close()

    async def _release(self, keys: Iterable[tuple[str, str]]) -> None:
        """Let other processes send what is left."""
        try:
            await asyncio.to_thread(self._store.release, keys)
        except StoreError as error:
            log.error("push notifications cannot be left to other processes: %s", error_text(error))

    async def _mark_sent(self, row: PushSubscription, seq: int, *, over: bool) -> None:
        try:
            await asyncio.to_thread(self._store.mark_delivered, row, seq, done=over)
        except StoreError as error:  # the notification is sent again after a restart
            log.error(
                "a sent push notification for the run %s could not be recorded: %s", row.run_id, error_text(error)
            )

    async def _check_access(self, row: PushSubscription, scope: Scope | None) -> None:
        """Check that the caller who registered a receiver could still register it. Wait while that cannot be read.

        Raises:
            _AccessLostError: the caller could not.
        """
        problem = ""
        while True:
            try:
                caller = await self._current_caller(row.owner, scope)
                run = None if caller is None else await self._service.get(row.run_id, caller)
                break
            except UnknownRunError:
                raise _AccessLostError from None
            except StoreError as error:
                if not problem:
                    problem = error_text(error)
                    log.error(
                        "the receivers of the run %s wait: their access cannot be checked: %s", row.run_id, problem
                    )
                await asyncio.sleep(ACCESS_RETRY_SECONDS)
        if caller is None or run is None or not caller.may("run") or not may_see(caller, run):
            raise _AccessLostError

    async def _send(self, row: PushSubscription, scope: Scope | None, task: Task) -> None:
        """Post a task, with retries. A receiver that does not accept it misses it.

        Raises:
            _AccessLostError: the caller who registered the receiver no longer has access to the run.
        """
        headers = {"Content-Type": "application/json", "User-Agent": "hookline"}
        if row.token:
            headers["X-A2A-Notification-Token"] = row.token
        if row.scheme and row.credentials:
            headers["Authorization"] = f"{row.scheme} {row.credentials}"
        body, problem = _body(row, task), ""
        for pause in (*self._pauses, None):
            try:
                await self._check_access(row, scope)
                response = await post(self._egress(row.url), row.url, body, headers=headers, seconds=self._seconds)
                if 200 <= response.status < 300:
                    return
                problem = f"it answered {response.status}"
                if 300 <= response.status < 500 and response.status not in _RETRY_STATUSES:
                    break
            except EgressError:
                problem = "its address is no longer allowed"
                break
            except (FetchError, UrlError, RegistrationError) as error:
                problem = type(error).__name__ if isinstance(error, UrlError) else error_text(error)
            if pause is not None:
                await asyncio.sleep(pause)
        log.warning(
            "the receiver %s of the run %s could not be notified: %s", ascii(row.id), row.run_id, ascii(problem)[:300]
        )

    def _egress(self, url: str) -> Egress:
        """Return the egress policy for a URL: a listed host at any address, any other host at public addresses only."""
        parsed = parse_url(url)
        if parsed.host in self._hosts:
            return Egress([parsed.origin], private=True)
        return Egress([f"{parsed.scheme}://*:{parsed.port}"])

    def _check_url(self, url: str) -> None:
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


def _to_config(row: PushSubscription, caller: Caller) -> TaskPushNotificationConfig:
    config = TaskPushNotificationConfig(id=row.id, task_id=row.run_id, url=row.url)
    if row.owner != caller.id:
        return config
    config.token = row.token
    if row.scheme or row.credentials:
        config.authentication.CopyFrom(AuthenticationInfo(scheme=row.scheme, credentials=row.credentials))
    return config
