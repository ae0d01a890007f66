"""Health and metrics.

/livez      the process answers                                             200
/readyz     a worker may be asked, and relayd is not draining               200 or 503; ?verbose for why
/healthz    the same as /readyz, for balancers that ask there
/metrics    everything counted, in Prometheus' text format
/status     what is going on now: JSON, or a page for whoever asks for HTML; / is the page
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from relayd.admin.status import Status
from relayd.telemetry.metrics import Metrics

Checks = Callable[[], Awaitable[list[tuple[str, bool]]]]


def make_app(metrics: Metrics, checks: Checks, status: Status) -> web.Application:
    """Return the admin application; `checks` gives (what, is it well) pairs for readiness."""

    async def livez(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        rows = await checks()
        ready = all(well for _, well in rows)
        if "verbose" in request.query:
            text = "".join(
                f"[{'+' if well else '-'}]{what} {'ok' if well else 'failed'}\n" for what, well in rows
            )
        else:
            text = "ok\n" if ready else "not ready: " + ", ".join(w for w, well in rows if not well) + "\n"
        return web.Response(status=200 if ready else 503, text=text)

    async def show_metrics(request: web.Request) -> web.Response:
        return web.Response(
            body=metrics.exposition(), headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
        )

    async def show_status(request: web.Request) -> web.Response:
        if request.path == "/" or "text/html" in request.headers.get("Accept", ""):
            return web.Response(text=status.page(), content_type="text/html")
        return web.Response(body=orjson.dumps(status.report()), content_type="application/json")

    app = web.Application()
    app.router.add_get("/", show_status)
    app.router.add_get("/status", show_status)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/healthz", readyz)
    app.router.add_get("/metrics", show_metrics)
    return app
