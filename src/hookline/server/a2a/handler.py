"""The methods of the A2A protocol, implemented with the run service."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

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
    ContentTypeNotSupportedError,
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

from ..._base.attachment import AttachmentError
from ..._base.tasks import uninterrupted
from ..._base.text import error_text
from ...stores.approvals import DecisionRefusedError
from ...stores.audit.log import AuditLog
from ...stores.errors import StoreError
from ...stores.runs import RunFilter, RunRecord, page_of
from ..approvals import ApprovalService, caller_label
from ..auth import Right
from ..errors import BusyError, ConflictError, ServiceError, UnknownRunError
from ..runs import RunService
from .cards import agent_card, file_types
from .context import RequestContext, may_see, request_context, version_of
from .history import History
from .messages import (
    MessageContent,
    UnclearDecisionError,
    content_of,
    correlation_id_of,
    decision_of,
    how_to_decide,
)
from .push import PushNotifier
from .tasks import INPUT_REQUIRED, STATES, CallKey, TaskFollower, Update, task_from_record

log = logging.getLogger("hookline")

Event = Task | Update
TIME_TOLERANCE = 2e-6
"""Seconds by which the times of tasks may differ from those of their runs, because of rounding."""
MAX_CONTEXT_ID = 256
"""The limit for a context id, in characters."""


class Handler(RequestHandler):
    """The methods of the protocol. The id of a task is that of its run, the context is the caller's session.

    Args:
        service: runs the agents.
        push: sends push notifications.
        history: keeps the messages of callers.
        audit: gets a record of what is decided here, besides the records of the runs.
    """

    def __init__(
        self, service: RunService, push: PushNotifier, history: History, audit: AuditLog | None = None
    ) -> None:
        self._service = service
        self._push = push
        self._history = history
        self._approvals = ApprovalService(service.approvals, audit)

    # Messages

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        """Send a message and return the task once it has finished or waits, or at once if the caller asks for that."""
        with _protocol_errors(params):
            follower, note = await self._send(params, context)
            progress = follower.progress
            if not note and not params.configuration.return_immediately:
                await follower.settle()
            task = _visible(await follower.task(), request_context(context), progress.run)
            if note:
                task.status.CopyFrom(progress.note(note).status)
            return _limit_history(task, params.configuration)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Send a message and stream updates until the task has finished or waits."""
        with _protocol_errors(params):
            follower, note = await self._send(params, context)
            progress, request = follower.progress, request_context(context)
            yield _limit_history(_visible(await follower.task(), request, progress.run), params.configuration)
            if note:
                yield progress.note(note)
            elif may_see(request.caller, progress.run):
                async for event in _updates(follower):
                    yield event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Stream updates, beginning with the current task, so that nothing is missed."""
        with _protocol_errors(params):
            run = await self._run(params.id, context, "read")
            if run.is_over:
                raise UnsupportedOperationError(f"the task {run.id} has finished: get it with GetTask")
            follower = await self._follow(run, context)
            await follower.catch_up()
            yield await follower.task()
            waiting = set(follower.progress.waiting)
            async for event in _updates(follower, waiting):
                yield event

    async def _send(self, params: SendMessageRequest, context: ServerCallContext) -> tuple[TaskFollower, str]:
        """Deliver a message. Return the follower of the task, and a note if the message had no effect."""
        request, message = request_context(context), params.message
        content = content_of(message, file_types(request.agent))
        validate_history_length(params.configuration)
        config = params.configuration.task_push_notification_config
        pushing = params.configuration.HasField("task_push_notification_config")
        run = None if not message.task_id else await self._run(message.task_id, context)
        if run is None or pushing:
            _need(request, "run")
        if pushing:
            if run is not None:
                _need_visible(request, run)
            await self._push.check(config)
        if run is not None:
            follower, note = await self._continue(run, content, message, context)
            if pushing:
                await self._push.put(run, config, request, version_of(context))
            return follower, note
        run = await self._start(content, message, request)
        try:
            if pushing:
                await self._push.put(run, config, request, version_of(context), new=True)
            follower = await self._follow(run, context)
            await follower.read_first()
        except (BusyError, StoreError) as error:  # the run has started, so the error must name it
            log.error("the task %s cannot be followed: %s", run.id, error_text(error))
            reason = error_text(error) if isinstance(error, BusyError) else "the server cannot use its files"
            message_text = f"the task {run.id} goes on, but cannot be followed now: {reason}"
            raise InternalError(message_text, {"task_id": run.id}) from None
        return follower, ""

    async def _continue(
        self, run: RunRecord, content: MessageContent, message: Message, context: ServerCallContext
    ) -> tuple[TaskFollower, str]:
        if message.context_id and message.context_id != run.session:
            raise InvalidParamsError(f"the task {run.id} belongs to another context than {message.context_id!r:.80}")
        if run.is_over:
            raise UnsupportedOperationError(f"the task {run.id} has finished: send the message without its id")
        follower = await self._follow(run, context)
        await follower.catch_up()
        seq, is_waiting = follower.progress.seq, bool(follower.progress.waiting)
        note = await self._deliver(follower, content, request_context(context))
        await self._remember(run, message, content, event_seq=seq, steered=not is_waiting and not note)
        return follower, note

    async def _remember(self, run: RunRecord, message: Message, content: MessageContent, **more: Any) -> None:
        """Store a message for the history of its task. The run has got it, so an error is not one of the request."""
        try:
            await self._history.add(run, message, content, **more)
        except StoreError as error:
            log.error("a message is missing in the history of the task %s: %s", run.id, error_text(error))

    async def _start(self, content: MessageContent, message: Message, request: RequestContext) -> RunRecord:
        if len(message.context_id) > MAX_CONTEXT_ID:
            raise InvalidParamsError(f"a context id can have at most {MAX_CONTEXT_ID} characters")

        async def start() -> RunRecord:
            run = await self._service.start(
                request.caller,
                content.text,
                agent=request.agent.name,
                session=message.context_id,
                correlation_id=request.correlation_id(correlation_id_of(message)),
                transport="a2a",
                attachments=content.attachments,
            )
            await self._remember(run, message, content)
            return run

        return await uninterrupted(start())

    async def _deliver(self, follower: TaskFollower, content: MessageContent, request: RequestContext) -> str:
        """Send a message to a running task, or read it as a decision if a call waits. Return a note to the caller."""
        progress = follower.progress
        if not progress.waiting and any(isinstance(each, dict) and "decision" in each for each in content.data):
            return "No call waits for approval now, so the decision has no effect."
        if not progress.waiting:
            _need(request, "run")
            try:
                await self._service.steer(progress.run.id, request.caller, content.text, content.attachments)
            except AttachmentError as error:
                raise ContentTypeNotSupportedError(str(error)) from None
            return ""
        _need(request, "approve")
        rows = [each.row for each in progress.waiting.values() if each.row is not None]
        try:
            row, decision = decision_of(content, rows, unambiguous=progress.deciders <= {caller_label(request.caller)})
            decided = await self._approvals.store_decision(
                row,
                request.caller,
                request.correlation_id(),
                decision=decision.decision,
                digest=decision.digest,
                message=decision.message,
                arguments=decision.arguments,
                remember=decision.remember,
                pattern=decision.pattern,
            )
        except UnclearDecisionError as error:
            return str(error)
        except DecisionRefusedError as error:
            final = error.code in ("gone", "rights")
            return error_text(error) if final else f"{error_text(error)}. {how_to_decide(rows)}"
        if decided.status == "pending":
            return decided.who_is_needed
        progress.mark_decided((row.run_id, row.call_id))
        return ""

    # Tasks

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """Return the current task."""
        with _protocol_errors(params):
            validate_history_length(params)
            follower = await self._follow(await self._run(params.id, context, "read"), context)
            await follower.catch_up()
            return _limit_history(await follower.task(), params)

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """List the tasks of this agent, the newest first."""
        with _protocol_errors(params):
            request = _need(request_context(context), "read")
            validate_history_length(params)
            size = params.page_size if params.HasField("page_size") else DEFAULT_LIST_TASKS_PAGE_SIZE
            validate_page_size(size)
            before = decode_page_token(params.page_token) if params.page_token else ""
            if before:
                await self._check_page_token(before, context)
            filters: RunFilter = {
                "served": True,
                "agent": request.agent.name,
                "session": params.context_id,
                "states": _states(params),
            }
            if params.HasField("status_timestamp_after"):
                filters["since"] = max(params.status_timestamp_after.ToNanoseconds() / 1e9 - TIME_TOLERANCE, 0.0)
            runs = await self._service.list(request.caller, before=before, limit=size + 1, **filters)
            total = await self._service.count(request.caller, **filters)
            page = page_of(runs, size)
            received = await self._history.read(page, request.caller)
            tasks = [_limit_history(task_from_record(run, received[run.id]), params) for run in page]
            if not params.include_artifacts:
                for task in tasks:
                    task.ClearField("artifacts")
            token = encode_page_token(page[-1].id) if len(runs) > len(page) else ""
            return ListTasksResponse(tasks=tasks, next_page_token=token, page_size=size, total_size=total)

    async def _check_page_token(self, id: str, context: ServerCallContext) -> None:
        try:
            await self._run(id, context)
        except (UnknownRunError, TaskNotFoundError):
            raise InvalidParamsError("page_token is not valid: use the one from the previous page") from None

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Cancel a task and return it."""
        with _protocol_errors(params):
            run = await self._run(params.id, context, "run")
            if run.is_over:
                raise TaskNotCancelableError(f"the task {run.id} has finished")
            try:
                run = await self._service.cancel(run.id, request_context(context).caller)
            except ConflictError as error:
                raise TaskNotCancelableError(error_text(error)) from None
            follower = await self._follow(run, context)
            await follower.catch_up()
            return _visible(await follower.task(), request_context(context), run)

    # Push notifications

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Add a receiver of push notifications."""
        with _protocol_errors(params):
            run = await self._run(params.task_id, context, "run")
            _need_visible(request_context(context), run)
            await self._push.check(params)
            return await self._push.put(run, params, request_context(context), version_of(context))

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Get a receiver by id."""
        with _protocol_errors(params if params.id or version_of(context) == "1.0" else None):
            run = await self._run(params.task_id, context, "read")
            for config in await self._push.list(run, request_context(context).caller):
                if config.id == (params.id or run.id):
                    return config
            raise TaskNotFoundError("there is no such push notification config")

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """List the receivers."""
        with _protocol_errors(params):
            run = await self._run(params.task_id, context, "read")
            return ListTaskPushNotificationConfigsResponse(
                configs=await self._push.list(run, request_context(context).caller)
            )

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Delete a receiver. It is no error if there is none with this id."""
        with _protocol_errors(params):
            run = await self._run(params.task_id, context, "run")
            await self._push.delete(run, params.id)

    # The agent card

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Return the card of the agent to an authenticated caller."""
        with _protocol_errors(params):
            request = request_context(context)
            return agent_card(request.agent, request.base_url, needs_key=request.needs_key)

    async def _run(self, id: str, context: ServerCallContext, right: Right | None = None) -> RunRecord:
        """Check the caller's right and return a run of this caller and this agent."""
        request = request_context(context)
        if right is not None:
            _need(request, right)
        run = await self._service.get(id, request.caller)
        if not run.is_served or run.agent != request.agent.name:
            raise UnknownRunError(f"there is no task {id!r:.80} of this agent")
        return run

    async def _follow(self, run: RunRecord, context: ServerCallContext) -> TaskFollower:
        request = request_context(context)
        reader = request.add_reader(await self._service.read(run.id, request.caller))
        return TaskFollower(run, reader, self._service.approvals, self._history, request.caller)


async def _updates(follower: TaskFollower, waiting: set[CallKey] | None = None) -> AsyncGenerator[Event, None]:
    """Yield updates until the task has finished or another call waits for approval."""
    while not follower.progress.over and set(follower.progress.waiting) <= (waiting or set()):
        updates = await follower.next_updates()
        if updates is None:
            return
        for event in updates:
            yield event


def _need_visible(request: RequestContext, run: RunRecord) -> None:
    if not may_see(request.caller, run):
        _need(request, "read")


def _visible(task: Task, request: RequestContext, run: RunRecord) -> Task:
    """Remove the texts from a task if the caller may not see them."""
    if not may_see(request.caller, run):
        for name in ("history", "artifacts"):
            task.ClearField(name)
        if task.status.state != INPUT_REQUIRED:  # a caller that may decide has to see the waiting calls
            task.status.ClearField("message")
    return task


def _need(request: RequestContext, right: Right) -> RequestContext:
    if not request.caller.may(right):
        request.record_missing_right(right)
        raise InvalidRequestError(
            f"this key does not have the right {right}, which the request needs", {"right": right}
        )
    return request


def _limit_history(task: Task, config: object) -> Task:
    return apply_history_length(task, config)  # type: ignore[arg-type]


def _states(params: ListTasksRequest) -> list[str]:
    if not params.status:
        return []
    return [name for name, state in STATES.items() if state == params.status] or ["none"]  # no run has this state


@contextmanager
def _protocol_errors(params: ProtoMessage | None) -> Iterator[None]:
    """Check the required fields and convert errors to those of the protocol. Internal errors are logged only."""
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
    except BusyError as error:
        raise InternalError(error_text(error), {"retry_after": error.retry_after}) from None
    except ServiceError as error:
        raise InternalError(error_text(error)) from None
    except StoreError as error:
        log.error("an A2A request failed: %s", error_text(error))
        raise InternalError("the server cannot use its files now: try again later") from None
    except Exception:
        log.exception("an A2A request failed")
        raise InternalError("internal error: the server log has the details") from None
