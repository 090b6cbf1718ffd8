"""Log a browser in with an API key, or with a link that works once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ..._base.workers import in_thread
from ..._web.middleware import Scope
from ...stores.keys import OPERATOR, KeyStore
from ..auth import ANONYMOUS, LOGIN_COOKIE, PUBLIC, RIGHTS
from ..errors import ApiError
from ..routing import Endpoint, Gate, error_body, json_response
from .render import Frame, base_of, page, set_frame

LOGIN_SECONDS = 12 * 3600
"""Seconds that a browser stays logged in."""
LINK_SECONDS = 600
"""Seconds that a link to log in is valid."""
LOGIN = "/console/login"
LINK = "/console/login/{secret}"
LOGOUT = "/console/logout"
MAX_FORM = 10_000
MAX_FIELDS = 1000
"""Most fields of a form: more would take long to parse, and block the event loop."""


class LoginPages:
    """The pages to log in and out.

    Args:
        keys: the API keys; ``None`` if the host application knows the callers.
        gate: checks keys, and counts wrong ones.
    """

    def __init__(self, keys: KeyStore | None, gate: Gate) -> None:
        self._keys = keys
        self._gate = gate

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints; none if the host application knows the callers."""
        if self._keys is None:
            return []
        pages = (
            ("GET", LOGIN, self._show, PUBLIC, "show_login"),
            ("POST", LOGIN, self._log_in, PUBLIC, "log_in"),
            ("GET", LINK, self._show_link, PUBLIC, "show_login_link"),
            ("POST", LINK, self._use_link, PUBLIC, "use_login_link"),
            ("POST", LOGOUT, self._log_out, RIGHTS, "log_out"),
        )
        return [page_endpoint(method, path, handler, scopes, name) for method, path, handler, scopes, name in pages]

    async def _show(self, request: Request) -> Response:
        return _login_page(request)

    async def _log_in(self, request: Request) -> Response:
        fields = await form(request)
        try:
            cookie = await in_thread(self._gate.open_login, request.scope, LOGIN, fields.get("key", ""), LOGIN_SECONDS)
        except ApiError as error:
            wrong = "This key is not valid." if error.status == 401 else f"{error}."
            return _login_page(request, problem=wrong, status=error.status)
        return _logged_in(request, cookie, fields.get("next", ""))

    async def _show_link(self, request: Request) -> Response:
        # A link is used by the button, not by opening it: programs that preview links must not use it up.
        return _login_page(request, link=request.path_params["secret"])

    async def _use_link(self, request: Request) -> Response:
        secret = request.path_params["secret"]
        cookie = await in_thread(self._gate.use_login_link, request.scope, LINK, secret, LOGIN_SECONDS)
        if cookie is None:
            problem = "This link was used before or is too old. Restart hookline serve for another one, or use a key."
            return _login_page(request, problem=problem, status=410)
        return _logged_in(request, cookie, "")

    async def _log_out(self, request: Request) -> Response:
        assert self._keys is not None
        await in_thread(self._keys.end_login, request.cookies.get(LOGIN_COOKIE, ""))
        response = RedirectResponse(base_of(request) + LOGIN, 303)
        response.delete_cookie(LOGIN_COOKIE, path=base_of(request) or "/")
        return response


def login_link(keys: KeyStore, url: str) -> str:
    """Return a link that logs a browser in once, as the person who started the server at ``url``.

    Raises:
        StoreError: the file of the keys cannot be used.
    """
    return url + LINK.format(secret=keys.add_login(OPERATOR, LINK_SECONDS, once=True))


async def form(request: Request, limit: int = MAX_FORM) -> dict[str, str]:
    """Return the fields of a form of at most ``limit`` bytes; the last one of each name.

    Raises:
        ApiError: the body is too long, has too many fields, or is not a form.
    """
    return {name: values[-1] for name, values in (await form_lists(request, limit)).items()}


async def form_lists(request: Request, limit: int = MAX_FORM) -> dict[str, list[str]]:
    """Return the fields of a form of at most ``limit`` bytes, with all values of each name.

    Raises:
        ApiError: the body is too long, has too many fields, or is not a form.
    """
    body = await request.body()
    if len(body) > limit:
        raise ApiError(413, "too_long", f"a form has at most {limit:,} bytes")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except (UnicodeDecodeError, ValueError):
        raise ApiError(400, "bad_form", f"the body is not a form with at most {MAX_FIELDS} fields") from None


def wants_sections(request: Request) -> bool:
    """Whether a request comes from the script of a page, which swaps the changed sections of the page in."""
    return request.headers.get("accept", "") == "application/json"


def page_endpoint(
    method: str, path: str, handler: Callable[[Request], Awaitable[Response]], scopes: tuple[str, ...], name: str
) -> Endpoint:
    """Return the endpoint of a page, or of an action on one: errors are pages, and the API's description omits it."""
    return Endpoint(method, path, handler, scopes, name, media="text/html", error_page=error_page, described=False)


def error_page(error: ApiError, scope: Scope, *, has_tickets: bool = False, has_login: bool = True) -> Response:
    """Return the page of an error. Without a valid login, a browser is sent to the page to log in.

    If the host application knows the callers (``has_login=False``), there is no such page, and the error says so.
    The script of a page gets JSON, and shows the message where the action was.
    """
    request = Request(scope)
    if wants_sections(request):
        return json_response(error_body(error), error.status, dict(error.headers))
    if error.status == 401 and request.method == "GET" and has_login:
        wanted = request.url.path.removeprefix(base_of(request)) + (f"?{request.url.query}" * bool(request.url.query))
        return RedirectResponse(f"{base_of(request)}{LOGIN}?next={quote(wanted)}", 303)
    caller = scope.get("hookline.caller", ANONYMOUS)
    set_frame(request, Frame(has_tickets=has_tickets))
    made = page(request, "error.html", status=error.status, error=error, caller=caller)
    made.headers.update(error.headers)
    return made


def _login_page(request: Request, *, problem: str = "", link: str = "", status: int = 200) -> HTMLResponse:
    return page(request, "login.html", status=status, problem=problem, link=link, next=_next(request))


def _next(request: Request) -> str:
    return own_path(request.query_params.get("next", ""))


def own_path(wanted: str) -> str:
    """Return a path of this server to go on with; the first page if it is anything else."""
    parts = urlsplit(wanted)
    safe = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return wanted if safe and wanted.isprintable() else "/"


def _logged_in(request: Request, cookie: str, wanted: str) -> Response:
    response = RedirectResponse(base_of(request) + own_path(wanted), 303)
    response.set_cookie(
        LOGIN_COOKIE,
        cookie,
        max_age=LOGIN_SECONDS,
        path=base_of(request) or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response
