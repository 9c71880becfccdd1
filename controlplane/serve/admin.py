"""A view of a running control plane in, an HTTP API for people and tools out. docs/admin-api.md describes it.

Everything is read-only but two switches, which want the bearer token of `admin.token_file`. Without a token
configured they answer 403: a control plane that is reachable must not be stoppable by anybody who reaches it.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from controlplane.decide.explain import explain
from controlplane.model.policy import Mode, Policy
from controlplane.serve import documents
from controlplane.serve.documents import Document, Selection
from controlplane.serve.lookup import Unknown, find_key
from controlplane.serve.redact import NONE, redact_all
from controlplane.serve.view import Moment, QuotaDesk, View

MAX_BODY_BYTES = 16 * 1024
REASON_CHARS_MAX = 200
PAGE = 500
PAGE_AT_MOST = 10_000
CHANGES = 100
SCRAPE_SHARED_S = 0.5  # scrapes this close together get the same page
DIGITS_MAX = 9  # of a number in a query


class Problem(Exception):
    """An answer that is not 200: its status, a stable code, and a sentence for people."""

    def __init__(self, status: HTTPStatus, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.document = {"error": {"code": code, "message": message, **more}}


def admin_app(
    view: View,
    *,
    registry: CollectorRegistry,
    token: Callable[[], str | None],
    quotas: QuotaDesk | None = None,
) -> web.Application:
    """The admin API. `token` gives the switches' bearer token, read anew each time; None: there is none."""
    admin = _Admin(view, registry, token, quotas)
    app = web.Application(middlewares=[_errors_answered(admin.digests)], client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/", admin.index)
    app.router.add_get("/healthz", admin.healthz)
    app.router.add_get("/readyz", admin.readyz)
    app.router.add_get("/metrics", admin.metrics)
    for name, answer in admin.documents().items():
        app.router.add_get(f"/v1/{name}", answer)
        app.router.add_get(f"/{name}", answer)
    app.router.add_post("/v1/freeze", admin.freeze)
    app.router.add_post("/v1/mode", admin.mode)
    app.router.add_post("/v1/quotas", admin.adjust_quota)
    return app


class _Admin:
    """One method for each address; each reads the view once and answers a document."""

    def __init__(
        self,
        view: View,
        registry: CollectorRegistry,
        token: Callable[[], str | None],
        quotas: QuotaDesk | None,
    ) -> None:
        self._view = view
        self._registry = registry
        self._token = token
        self._scraped = (-math.inf, b"")
        self._quotas = quotas

    def documents(self) -> Mapping[str, Callable[[web.Request], Any]]:
        """What can be read, by name: under /v1/NAME and, shorter, under /NAME."""
        return {
            "decisions": self.decisions,
            "explain": self.explain,
            "signals": self.signals,
            "xds": self.xds,
            "config": self.config,
            "changes": self.changes,
            "control": self.control,
            "quotas": self.quotas,
        }

    async def index(self, _request: web.Request) -> web.Response:
        paths = ["/healthz", "/readyz", "/metrics", *(f"/v1/{name}" for name in self.documents())]
        return self._answer({"read": paths, "switch": ["/v1/freeze", "/v1/mode", "/v1/quotas"]})

    async def healthz(self, _request: web.Request) -> web.Response:
        return self._answer({"status": "alive"})

    async def readyz(self, _request: web.Request) -> web.Response:
        ready, reasons = self._view.ready()
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return self._answer({"ready": ready, "reasons": list(reasons)}, status)

    async def metrics(self, _request: web.Request) -> web.Response:
        """Ten thousand keys take a third of a second: many scrapers at once must not hold up the ticks."""
        made_s, body = self._scraped
        now_s = self._view.now_s()
        if not 0 <= now_s - made_s < SCRAPE_SHARED_S:
            body = generate_latest(self._registry)
            self._scraped = (now_s, body)
        return web.Response(body=body, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    async def decisions(self, request: web.Request) -> web.Response:
        moment = self._moment()
        selection = Selection(
            tenant=request.query.get("tenant"),
            route=request.query.get("route"),
            model_version=request.query.get("model_version"),
        )
        limit = _whole_number(request, "limit", PAGE, PAGE_AT_MOST)
        after = request.query.get("after", "")
        control = self._view.control()
        page = documents.decisions(moment, control, selection, after=after, limit=limit)
        return _json_response(
            page, HTTPStatus.OK
        )  # ids and numbers only: nothing to redact, and it may be long

    async def explain(self, request: web.Request) -> web.Response:
        moment = self._moment()
        wanted = {name: _wanted(request, name) for name in ("tenant", "route", "model_version")}
        key = find_key(moment.policy, **wanted)
        if isinstance(key, Unknown):
            raise Problem(
                HTTPStatus.NOT_FOUND,
                "unknown_" + key.field,
                key.message,
                field=key.field,
                given=key.given,
                close=list(key.close),
            )
        explanation = explain(moment.policy, moment.decision, key.id)
        return self._answer(documents.explanation(moment, explanation, key.id))

    async def signals(self, _request: web.Request) -> web.Response:
        moment = self._moment()
        if moment.observation is None:
            raise _not_yet("nothing was measured yet")
        return self._answer(documents.signals(moment.policy, moment.observation, self._view.now_s()))

    async def xds(self, _request: web.Request) -> web.Response:
        return self._answer(documents.xds(self._view.xds_status(), self._view.xds_totals()))

    async def config(self, _request: web.Request) -> web.Response:
        return self._answer(documents.config(self._view.config_status(), self._view.policy()))

    async def changes(self, request: web.Request) -> web.Response:
        limit = _whole_number(request, "limit", CHANGES, PAGE_AT_MOST)
        return self._answer(documents.changes(self._view.recent_changes(limit)))

    async def control(self, _request: web.Request) -> web.Response:
        return self._answer(documents.control(self._view.control()))

    async def freeze(self, request: web.Request) -> web.Response:
        self._authorise(request)
        body = await _json_object(request)
        on = body.get("on")
        if not isinstance(on, bool):
            raise Problem(HTTPStatus.BAD_REQUEST, "invalid_body", "`on` must be true or false")
        self._view.freeze(on, reason=_reason(body), by=_caller(request))
        return self._answer(documents.control(self._view.control()))

    async def mode(self, request: web.Request) -> web.Response:
        self._authorise(request)
        body = await _json_object(request)
        if body.get("mode") not in tuple(Mode):
            choices = " or ".join(f"`{mode}`" for mode in Mode)
            raise Problem(HTTPStatus.BAD_REQUEST, "invalid_body", f"`mode` must be {choices}")
        self._view.set_mode(Mode(body["mode"]), reason=_reason(body), by=_caller(request))
        return self._answer(documents.control(self._view.control()))

    async def quotas(self, request: web.Request) -> web.Response:
        desk = self._quota_desk()
        return self._answer(await desk.show(request.query.get("tenant"), request.query.get("model_version")))

    async def adjust_quota(self, request: web.Request) -> web.Response:
        self._authorise(request)
        body = await _json_object(request)
        desk = self._quota_desk()
        try:
            return self._answer(await desk.adjust(body, by=_caller(request)))
        except ValueError as error:
            raise Problem(HTTPStatus.BAD_REQUEST, "invalid_body", str(error)) from None
        except ConnectionError as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "store_away", str(error)) from None

    def _quota_desk(self) -> QuotaDesk:
        if self._quotas is None:
            raise Problem(HTTPStatus.NOT_FOUND, "no_quotas", "this control plane counts no quotas")
        return self._quotas

    def _moment(self) -> Moment:
        moment = self._view.moment()
        if moment is None:
            _ready, reasons = self._view.ready()
            raise _not_yet("; ".join(reasons) or "no decision was made yet")
        return moment

    def _authorise(self, request: web.Request) -> None:
        expected = self._token()
        if not expected:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "no_token_configured",
                "switches are off: no admin.token_file is configured for this control plane",
            )
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # aiohttp reads bytes that are no UTF-8 as lone surrogates.
        same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), expected.encode())
        if scheme.lower() != "bearer" or not same:
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "invalid_token",
                "the token of admin.token_file is wanted, as a bearer token (tidegate: --token-file FILE)",
            )

    def digests(self) -> frozenset[str]:
        """The SHA-256 digests of every API key in force, to recognise a key that strayed into a text."""
        policy = self._view.policy()
        return NONE if policy is None else key_digests(policy)

    def _answer(self, document: Document, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
        return _json_response(redact_all(document, self.digests()), status)


def key_digests(policy: Policy) -> frozenset[str]:
    """The digests of every API key of every tenant."""
    return frozenset(digest for tenant in policy.tenants for digest in tenant.key_digests)


def _errors_answered(digests: Callable[[], frozenset[str]]) -> Any:
    """A middleware that makes every refusal a JSON document, those of the HTTP server itself included."""

    @web.middleware
    async def answered(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
        except Problem as problem:
            return _json_response(redact_all(problem.document, digests()), problem.status)
        except web.HTTPException as error:
            document = {"error": {"code": error.reason.lower().replace(" ", "_"), "message": error.reason}}
            return _json_response(document, HTTPStatus(error.status))
        return response

    return answered


def _json_response(document: Document, status: HTTPStatus) -> web.Response:
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    body = text.encode("utf-8", "replace")  # a file's name may hold what is no UTF-8
    return web.Response(body=body, status=status, content_type="application/json", charset="utf-8")


def _not_yet(message: str) -> Problem:
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", message)


def _wanted(request: web.Request, name: str) -> str:
    value = request.query.get(name, "")
    if not value:
        message = f"`{name}` is missing: ?tenant=T&route=R&model_version=MODEL:VERSION"
        raise Problem(HTTPStatus.BAD_REQUEST, "missing_parameter", message, field=name)
    return value


def _whole_number(request: web.Request, name: str, default: int, at_most: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and 1 <= int(text) <= at_most):
        message = f"`{name}` must be a whole number from 1 to {at_most}"
        raise Problem(HTTPStatus.BAD_REQUEST, "invalid_parameter", message, field=name)
    return int(text)


async def _json_object(request: web.Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await request.read())  # UTF-8, whatever charset the client claims
    except (ValueError, RecursionError, web.RequestPayloadError):  # the last: a broken content-encoding
        body = None
    if not isinstance(body, dict):
        raise Problem(HTTPStatus.BAD_REQUEST, "invalid_body", "the body must be a JSON object")
    return body


def _reason(body: Mapping[str, Any]) -> str:
    """Why a switch was flipped. It goes to logs and terminals, so it is one line that can be printed."""
    reason = body.get("reason", "")
    if not isinstance(reason, str):
        return ""
    return "".join(char if char.isprintable() else " " for char in reason[:REASON_CHARS_MAX]).strip()


def _caller(request: web.Request) -> str:
    return f"admin API from {request.remote or 'an unknown address'}"
