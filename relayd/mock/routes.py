"""Routes that take no time: what engines tell about themselves, and the mock's own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson

from relayd.mock import exposition, faults
from relayd.mock.asks import Refusal
from relayd.mock.writers import Json

if TYPE_CHECKING:
    from relayd.mock.connection import Request
    from relayd.mock.exchange import Exchange
    from relayd.mock.server import MockServer


def plain(server: MockServer, exchange: Exchange) -> None:
    """Answer what needs no simulation.  Raises Refusal."""
    path = exchange.request.path
    if path == "/health":
        must_be(exchange.request, b"GET")
        exchange.send(200, b"", "text/plain")
    elif path == "/metrics":
        page = exposition.render(server.simulation, server.settings.engine, server.settings.models[0])
        exchange.send(200, page, exposition.CONTENT_TYPE)
    elif path == "/v1/models":
        must_be(exchange.request, b"GET")
        exchange.send_json(_model_list(server))
    elif path.startswith("/v1/models/"):
        exchange.send_json(_model_card(server, server.model(path.removeprefix("/v1/models/"))))
    elif path.startswith("/v1/responses/"):
        _kept_response(server, exchange, path.removeprefix("/v1/responses/"))
    else:
        exchange.send(404, b'{"detail":"Not Found"}')


def _kept_response(server: MockServer, exchange: Exchange, identity: str) -> None:
    if identity not in server.kept:
        raise Refusal(404, f"Response with id '{identity}' not found.", param="response_id")
    exchange.send_json(server.kept[identity])


def _model_list(server: MockServer) -> Json:
    cards = [_model_card(server, name) for name in server.settings.models]
    if server.settings.engine != "anthropic":
        return {"object": "list", "data": cards}
    return {"data": cards, "has_more": False, "first_id": cards[0]["id"], "last_id": cards[-1]["id"]}


def _model_card(server: MockServer, name: str) -> Json:
    engine = server.settings.engine
    if engine == "anthropic":
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(server.started_at))
        return {"type": "model", "id": name, "display_name": name, "created_at": since}
    card: Json = {"id": name, "object": "model", "created": server.started_at, "owned_by": engine}
    if engine != "openai":
        card |= {"root": name, "parent": None, "max_model_len": server.settings.max_model_len}
    return card


def own(server: MockServer, exchange: Exchange) -> None:
    """Answer what is no engine's but the mock's."""
    request = exchange.request
    if request.path == "/mock/stats":
        exchange.send_json(server.stats.as_json(with_headers=b"headers" in request.query))
    elif request.path == "/mock/reset" and request.method == b"POST":
        server.stats.reset()
        exchange.send_json({"reset": True})
    elif request.path == "/mock/faults" and request.method in (b"POST", b"PUT"):
        _set_faults(server, exchange)
    else:
        exchange.send(404, b'{"detail":"try GET /mock/stats, POST /mock/reset, POST /mock/faults"}')


def _set_faults(server: MockServer, exchange: Exchange) -> None:
    try:
        wanted: Any = orjson.loads(exchange.request.body or b"[]")
        if not isinstance(wanted, list) or not all(isinstance(text, str) for text in wanted):
            raise faults.BadFault('the body must be a list, as in ["status=503@0.1"]')
        server.chances = [faults.parse_flag(text) for text in wanted]
    except (orjson.JSONDecodeError, faults.BadFault) as error:
        exchange.send(400, orjson.dumps({"detail": str(error)}))
        return
    exchange.send_json({"faults": wanted})


def must_be(request: Request, method: bytes) -> None:
    """Refuse any other method."""
    if request.method != method:
        raise Refusal(405, "Method Not Allowed")
