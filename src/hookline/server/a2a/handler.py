"""What A2A clients ask for, done by the one service of runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.task import (
    apply_history_length,
    decode_page_token,
    encode_page_token,
    validate_history_length,
    validate_page_size,
)
from google.protobuf.message import Message as ProtoMessage

from ..._base.text import error_text
from ...stores.approvals import ApprovalRow, DecisionRefusedError
from ...stores.audit.log import AuditLog
from ...stores.errors import StoreError
from ...stores.runs import RunFilter, RunRecord, page_of
from ..callers import Right
from ..errors import Busy, ConflictError, ServiceError, UnknownRunError
from ..grant_records import GrantRecords, name_of
from ..service import RunService
from .cards import card_of
from .following import Following
from .mapping import STATES, WAITING, Update, told_of
from .messages import Said, Unclear, correlation_in, decision_in, how_to, said_in
from .push import Push
from .visits import Visit, version_of, visit_of

log = logging.getLogger("hookline")

Event = Task | Update
ROUNDED = 2e-6
"""Seconds by which the times of tasks may differ from those of their runs."""
MAX_CONTEXT = 256
"""Characters of a context id."""


class Handler(RequestHandler):
    """The methods of the protocol. A task is a served run: its id is the run's, its context the caller's session.

    Args:
        service: has the runs.
        push: tells receivers.
        audit: gets a record of every standing permission that is given.
    """

    def __init__(self, service: RunService, push: Push, audit: AuditLog | None = None) -> None:
        self._service, self._push = service, push
        self._records = GrantRecords(service.approvals, audit)

    # Messages.

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        """Say something; the task, when it is over or waits, or at once if the caller wants that."""
        with _clean(params):
            following, note = await self._send(params, context)
            story = following.story
            if not note and not params.configuration.return_immediately:
                await following.settle()
            task = _shown(story.task(), visit_of(context), story.run)
            if note:
                task.status.CopyFrom(story.words(note).status)
            return _cut(task, params.configuration)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Say something, and see what happens until the task is over or waits."""
        with _clean(params):
            following, note = await self._send(params, context)
            story, visit = following.story, visit_of(context)
            yield _cut(_shown(story.task(), visit, story.run), params.configuration)
            if note:
                yield story.words(note)
            elif _sees(visit, story.run):
                async for event in _updates(following):
                    yield event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """See what happens from now on; the task as it is comes first, so that nothing is missed."""
        with _clean(params):
            run = await self._run(params.id, context, "read")
            if run.is_over:
                raise UnsupportedOperationError(f"the task {run.id} is over: get it with GetTask")
            following = await self._following(run, context)
            await following.catch_up()
            yield following.story.task()
            waiting = set(following.story.waiting)
            async for event in _updates(following, waiting):
                yield event

    async def _send(self, params: SendMessageRequest, context: ServerCallContext) -> tuple[Following, str]:
        """Where the task is after what was said; and what to tell the caller, if it has to say something else."""
        visit, message = visit_of(context), params.message
        said = said_in(message)
        validate_history_length(params.configuration)
        wanted = params.configuration.task_push_notification_config
        pushing = params.configuration.HasField("task_push_notification_config")
        run = None if not message.task_id else await self._run(message.task_id, context)
        if run is None or pushing:
            _need(visit, "run")
        if pushing:
            if run is not None:
                _need_sight(visit, run)
            await self._push.check(wanted)
        if run is not None:
            following, note = await self._go_on(run, said, message, context)
            if pushing:
                await self._push.put(run, wanted, visit.caller, version_of(context))
            return following, note
        run = await self._start(said, message, visit)
        try:
            if pushing:
                await self._push.put(run, wanted, visit.caller, version_of(context), new=True)
            following = await self._following(run, context)
            await following.begin()
        except (Busy, StoreError) as error:  # the caller must learn of what has begun
            log.error("the task %s cannot be followed: %s", run.id, error_text(error))
            why = error_text(error) if isinstance(error, Busy) else "the server cannot use its files"
            said_so = f"the task {run.id} goes on, but cannot be followed now: {why}"
            raise InternalError(said_so, {"task_id": run.id}) from None
        return following, ""

    async def _go_on(
        self, run: RunRecord, said: Said, message: Message, context: ServerCallContext
    ) -> tuple[Following, str]:
        if message.context_id and message.context_id != run.session:
            raise InvalidParamsError(f"the task {run.id} belongs to another context than {message.context_id!r:.80}")
        if run.is_over:
            raise UnsupportedOperationError(f"the task {run.id} is over: send the message without its id")
        following = await self._following(run, context)
        await following.catch_up()
        return following, await self._say(following, said, visit_of(context))

    async def _start(self, said: Said, message: Message, visit: Visit) -> RunRecord:
        if len(message.context_id) > MAX_CONTEXT:
            raise InvalidParamsError(f"a context id has at most {MAX_CONTEXT} characters")
        return await self._service.start(
            visit.caller, said.text, agent=visit.agent.name, session=message.context_id,
            correlation_id=visit.correlation(correlation_in(message)), transport="a2a",
        )  # fmt: skip

    async def _say(self, following: Following, said: Said, visit: Visit) -> str:
        """Put a message into a task that goes on, or take it as the answer to what the task waits for."""
        story = following.story
        if not story.waiting and any(isinstance(each, dict) and "decision" in each for each in said.data):
            return "No call waits for approval now: this decides nothing."
        if not story.waiting:
            _need(visit, "run")
            await self._service.steer(story.run.id, visit.caller, said.text)
            return ""
        _need(visit, "approve")
        rows = [each.row for each in story.waiting.values() if each.row is not None]
        try:
            row, answer = decision_in(said, rows, sure=story.deciders <= {name_of(visit.caller)})
            decided = await asyncio.to_thread(
                self._service.approvals.decide, row.id, decision=answer.decision, digest=answer.digest,
                by=name_of(visit.caller), message=answer.message, arguments=answer.arguments, remember=answer.remember,
                pattern=answer.pattern, owner=visit.caller.owner,
            )  # fmt: skip
        except Unclear as unclear:
            return str(unclear)
        except DecisionRefusedError as refused:
            return _again(refused, rows)
        story.answered((row.run_id, row.call_id))
        await self._records.decided(decided, visit.correlation(""))
        return ""

    # Tasks.

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """A task as it is now."""
        with _clean(params):
            validate_history_length(params)
            following = await self._following(await self._run(params.id, context, "read"), context)
            await following.catch_up()
            return _cut(following.story.task(), params)

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Tasks of this agent, the newest first."""
        with _clean(params):
            visit = _need(visit_of(context), "read")
            validate_history_length(params)
            size = params.page_size if params.HasField("page_size") else DEFAULT_LIST_TASKS_PAGE_SIZE
            validate_page_size(size)
            before = decode_page_token(params.page_token) if params.page_token else ""
            if before:
                await self._page_after(before, context)
            wanted: RunFilter = {
                "agent": visit.agent.name, "session": params.context_id, "states": _states(params),
            }  # fmt: skip
            if params.HasField("status_timestamp_after"):
                wanted["since"] = max(params.status_timestamp_after.ToNanoseconds() / 1e9 - ROUNDED, 0.0)
            runs = await self._service.list(visit.caller, before=before, limit=size + 1, **wanted)
            total = await self._service.count(visit.caller, **wanted)
            page = page_of(runs, size)
            tasks = [_cut(told_of(run), params) for run in page]
            if not params.include_artifacts:
                for task in tasks:
                    task.ClearField("artifacts")
            token = encode_page_token(page[-1].id) if len(runs) > len(page) else ""
            return ListTasksResponse(tasks=tasks, next_page_token=token, page_size=size, total_size=total)

    async def _page_after(self, id: str, context: ServerCallContext) -> None:
        try:
            await self._run(id, context)
        except (UnknownRunError, TaskNotFoundError):
            raise InvalidParamsError("page_token is not one that a list gave") from None

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Cancel a task; as it is then."""
        with _clean(params):
            run = await self._run(params.id, context, "run")
            if run.is_over:
                raise TaskNotCancelableError(f"the task {run.id} is over")
            try:
                run = await self._service.cancel(run.id, visit_of(context).caller)
            except ConflictError as error:
                raise TaskNotCancelableError(error_text(error)) from None
            following = await self._following(run, context)
            await following.catch_up()
            return _shown(following.story.task(), visit_of(context), run)

    # Push notifications.

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Tell somebody how a task goes on."""
        with _clean(params):
            run = await self._run(params.task_id, context, "run")
            _need_sight(visit_of(context), run)
            await self._push.check(params)
            return await self._push.put(run, params, visit_of(context).caller, version_of(context))

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Who is told, by id."""
        with _clean(params if params.id or version_of(context) == "1.0" else None):
            run = await self._run(params.task_id, context, "read")
            for config in await self._push.list(run, visit_of(context).caller):
                if config.id == (params.id or run.id):
                    return config
            raise TaskNotFoundError("there is no such push notification config")

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Who is told."""
        with _clean(params):
            run = await self._run(params.task_id, context, "read")
            return ListTaskPushNotificationConfigsResponse(configs=await self._push.list(run, visit_of(context).caller))

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Tell somebody no more."""
        with _clean(params):
            run = await self._run(params.task_id, context, "run")
            if not await self._push.delete(run, params.id):
                raise TaskNotFoundError("there is no such push notification config")

    # The agent.

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """The card of the agent, for callers that were let in."""
        with _clean(params):
            visit = visit_of(context)
            return card_of(visit.agent, visit.base, keyed=visit.keyed)

    async def _run(self, id: str, context: ServerCallContext, right: Right | None = None) -> RunRecord:
        """A run of this caller and this agent."""
        visit = visit_of(context)
        if right is not None:
            _need(visit, right)
        run = await self._service.get(id, visit.caller)
        if run.agent != visit.agent.name:
            raise UnknownRunError(f"there is no task {id!r:.80} of this agent")
        return run

    async def _following(self, run: RunRecord, context: ServerCallContext) -> Following:
        visit = visit_of(context)
        reader = visit.keep(await self._service.read(run.id, visit.caller))
        return Following(run, reader, self._service.approvals)


async def _updates(following: Following, waiting: set[tuple[str, str]] | None = None) -> AsyncGenerator[Event, None]:
    """What happens until the task is over, or waits for something that it did not wait for before."""
    while not following.story.over and set(following.story.waiting) <= (waiting or set()):
        made = await following.more()
        if made is None:
            return
        for event in made:
            yield event


def _sees(visit: Visit, run: RunRecord) -> bool:
    """Whether a caller is told what is said in a run: it may read, or is the one who talks there."""
    return visit.caller.may("read") or (visit.caller.may("run") and visit.caller.id == run.owner)


def _need_sight(visit: Visit, run: RunRecord) -> None:
    if not _sees(visit, run):
        _need(visit, "read")


def _shown(task: Task, visit: Visit, run: RunRecord) -> Task:
    """A task for whoever has to do with it; what was said is left out if it is not for them."""
    if not _sees(visit, run):
        for name in ("history", "artifacts"):
            task.ClearField(name)
        if task.status.state != WAITING:  # what waits, those who decide have to see
            task.status.ClearField("message")
    return task


def _need(visit: Visit, right: Right) -> Visit:
    if not visit.caller.may(right):
        visit.denied(right)
        raise InvalidRequestError(f"this key may not do that: it needs the right {right}", {"right": right})
    return visit


def _cut(task: Task, config: object) -> Task:
    return apply_history_length(task, config)  # type: ignore[arg-type]


def _states(params: ListTasksRequest) -> list[str]:
    if not params.status:
        return []
    return [name for name, state in STATES.items() if state == params.status] or ["none"]  # a state that no run has


def _again(refused: DecisionRefusedError, rows: list[ApprovalRow]) -> str:
    return f"{error_text(refused)}. {how_to(rows)}" if refused.code != "gone" else error_text(refused)


@contextmanager
def _clean(params: ProtoMessage | None) -> Iterator[None]:
    """What goes wrong in the words of the protocol; what should not go wrong is logged, and its words stay here."""
    try:
        if params is not None:
            validate_proto_required_fields(params)
        yield
    except A2AError:
        raise
    except UnknownRunError as error:
        raise TaskNotFoundError(error_text(error)) from None
    except ConflictError as error:
        raise UnsupportedOperationError(error_text(error)) from None
    except Busy as error:
        raise InternalError(error_text(error), {"retry_after": error.retry_after}) from None
    except ServiceError as error:
        raise InternalError(error_text(error)) from None
    except StoreError as error:
        log.error("an A2A request could not be answered: %s", error_text(error))
        raise InternalError("the server cannot use its files now: try again later") from None
    except Exception:
        log.exception("an A2A request could not be answered")
        raise InternalError("something went wrong here") from None
