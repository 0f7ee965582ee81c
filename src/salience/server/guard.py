"""What every request must pass before it is read: its host, its origin, its token, its size and its type.

A page of another site can make a browser send requests to this server. It cannot choose the Host header (so that a name
that resolves to this address is refused), nor hide that it is another site, nor send JSON without being asked first.
"""

from asyncio import wait_for
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.cookies import SimpleCookie
from ipaddress import ip_address
from secrets import compare_digest
from time import monotonic
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from salience.server.problems import problem

COOKIE = "salience-token"
NO_TOKEN = (
    "the token is missing or wrong; open the address that `salience serve` printed, "
    "or send 'Authorization: Bearer TOKEN'"
)
CHANGES = ("POST", "PUT", "PATCH", "DELETE")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
"""Scripts only from files of this server; nothing from elsewhere."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Added to every answer that does not set them itself."""


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach the address."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_names(host: str, port: int, others: Sequence[str] = ()) -> frozenset[str]:
    """The values of the Host header that are served, in lower case.

    >>> sorted(host_names("127.0.0.1", 8000))
    ['127.0.0.1:8000', '[::1]:8000', 'localhost:8000']
    """
    names = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(host) else [f"[{host}]" if ":" in host else host]
    exact = {f"{name}:{port}" for name in (*names, *others)} | ({*names, *others} if port in (80, 443) else set())
    return frozenset(name.lower() for name in exact)


@dataclass(frozen=True, slots=True)
class Guard:
    """ASGI middleware that refuses what it should not serve, and adds the security headers."""

    app: ASGIApp
    hosts: frozenset[str]
    token: str | None
    body: int
    patience: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        safe = _with_headers(send)
        fault = self._fault(scope, headers)
        if fault is not None:
            await problem(*fault)(scope, receive, safe)
        elif self.token is not None and "token" in _query(scope):
            await self._signed_in(scope)(scope, receive, safe)
        else:
            await self.app(scope, self._measured(receive), safe)

    def _fault(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """The status and the message of a refusal, or None."""
        host = headers.get("host", "").lower()
        if host not in self.hosts:
            return 421, f"this server is not {host!r}; open it as {' or '.join(sorted(self.hosts))}"
        if self.token is not None and not self._knows_token(scope, headers):
            return 403, NO_TOKEN
        if scope["method"] in CHANGES:
            return _foreign(headers, host) or self._unreadable(scope, headers)
        return None

    def _knows_token(self, scope: Scope, headers: Headers) -> bool:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        given = (
            headers.get("authorization", "").removeprefix("Bearer "),
            "" if cookie is None else cookie.value,
            _query(scope).get("token", "") if scope["method"] == "GET" else "",
        )
        return any(compare_digest(one.encode(), (self.token or "").encode()) for one in given)

    def _unreadable(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.body:
            return 413, f"the request has {length} bytes; at most {self.body:,} are read. Shorten the text."
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] != "DELETE" and kind != "application/json":
            return 415, f"the content type is {kind or 'missing'}; send JSON as application/json"
        return None

    def _measured(self, receive: Receive) -> Receive:
        """The same messages; a body that is longer than announced, or that does not end, is refused."""
        seen, begin, complete = 0, monotonic(), False

        async def measured() -> Message:
            nonlocal seen, complete
            if complete:  # only the end of the connection is left to wait for
                return await receive()
            try:
                message = await wait_for(receive(), self.patience - (monotonic() - begin))
            except TimeoutError:
                raise HTTPException(408, f"the request did not end within {self.patience:g} s; send it again") from None
            complete = not message.get("more_body", False)
            seen += len(message.get("body", b""))
            if seen > self.body:
                raise HTTPException(413, f"the request is longer than {self.body:,} bytes; shorten the text")
            return message

        return measured

    def _signed_in(self, scope: Scope) -> RedirectResponse:
        """Keep the token in a cookie, and take it out of the address, which is shown and remembered."""
        rest = urlencode([(name, value) for name, value in _pairs(scope) if name != "token"])
        path = f"/{scope['path'].lstrip('/')}"  # two slashes would name another host
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(COOKIE, self.token or "", httponly=True, samesite="strict")
        return answer


def _foreign(headers: Headers, host: str) -> tuple[int, str] | None:
    """A refusal of what the page of another site sent."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin", "none"):
        return 403, f"refused: sent by a page of another site (Sec-Fetch-Site: {site})"
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        return 403, f"refused: sent by a page of {origin}, not of this server"
    return None


def _pairs(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _query(scope: Scope) -> Mapping[str, str]:
    return dict(_pairs(scope))


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return with_headers
