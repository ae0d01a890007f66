"""/status: what is going on now, for programs as JSON and for people as a page without a script."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import msgspec

from relayd import __version__
from relayd._fast.leg import LegOutcome, now_ns
from relayd.auth.authenticator import Authenticator
from relayd.config import Allowance, Settings, Tier
from relayd.limits.tenants import Limiter
from relayd.readers import QuotaOf, RateOf, Secret
from relayd.records import Worker
from relayd.telemetry.metrics import Metrics
from relayd.upstream.breakers import is_resting

PERIODS = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "d"}


class Status:
    """Looks at one gateway."""

    def __init__(
        self,
        settings: Settings,
        workers: Sequence[Worker],
        metrics: Metrics,
        authenticator: Authenticator | None,
        limiter: Limiter | None,
    ) -> None:
        self.show(settings)
        self.workers = workers
        self.metrics = metrics
        self.authenticator = authenticator
        self.limiter = limiter
        self.started_s = time.time()

    def show(self, settings: Settings, needs_restart: Sequence[str] = ()) -> None:
        """Take the settings that are in force, and the names of those in the file that are not."""
        self.needs_restart = list(needs_restart)
        self.settings = settings
        self.digest = digest_of(settings)

    def report(self) -> dict[str, Any]:
        """Return all of it, as plain data."""
        now, wall = now_ns(), time.time()
        return {
            "version": __version__,
            "settings": self.digest,
            "needs_restart": self.needs_restart,
            "uptime_s": round(wall - self.started_s),
            "requests_in_flight": self.metrics.in_flight,
            "connections": self.metrics.connections,
            "workers": [worker_row(worker, now) for worker in self.workers],
            "limits": {name: limits_of(tier) for name, tier in self.settings.limits.tiers.items()},
            "tenants": [use._asdict() for use in self.limiter.usage(now, wall)] if self.limiter else [],
            "authentication": None if self.authenticator is None else credentials_row(self.authenticator),
        }

    def page(self) -> str:
        """Return the report as HTML."""
        report = self.report()
        facts = [
            (name, report[name])
            for name in (
                "version",
                "settings",
                "needs_restart",
                "uptime_s",
                "requests_in_flight",
                "connections",
            )
        ]
        parts = [
            "<!doctype html><html lang=en><meta charset=utf-8><title>relayd</title>",
            "<style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}",
            "td,th{border:1px solid #bbb;padding:.2em .6em;text-align:left}</style><h1>relayd</h1>",
            table("", [{"": name, "value": value} for name, value in facts]),
            table("Workers", report["workers"]),
            table("Tenants", report["tenants"]),
            table("Limits", [{"tier": name, **limits} for name, limits in report["limits"].items()]),
        ]
        if report["authentication"] is not None:
            parts.append(table("Authentication", [report["authentication"]]))
        return "".join(parts)


def worker_row(worker: Worker, now: int) -> dict[str, Any]:
    """Return what is known of a worker."""
    pool = worker.pool
    state = "ready"
    if not worker.up:
        state = "not reached"
    elif is_resting(worker, now):
        state = "tried again" if worker.probing else "rests"
    elif worker.open_at_ns > now:
        state = "asked to be left alone"
    ended = {
        LegOutcome(i).name[4:].lower(): n
        for i, n in enumerate(pool.legs_ended())
        if n and i < len(LegOutcome)
    }
    return {
        "worker": worker.name,
        "url": worker.url,
        "state": state,
        "ready_in_s": max(0.0, round((worker.open_at_ns - now) / 1e9, 1)) if not worker.probing else None,
        "in_flight": pool.in_flight,
        "connections": pool.open,
        "failures_in_a_row": worker.failures,
        "legs": ended,
        "models": sorted(worker.models or ()),
    }


def credentials_row(authenticator: Authenticator) -> dict[str, Any]:
    """Return how the checking of credentials goes."""
    return {
        "ready": authenticator.ready,
        "keys_age_s": round(authenticator.keys_age_s),
        "remembered": authenticator.remembered,
        "refused": {reason: count for reason, count in authenticator.refused.items() if count},
    }


def table(title: str, rows: Iterable[dict[str, Any]]) -> str:
    """Return rows of plain data as an HTML table."""
    rows = list(rows)
    if not rows:
        return ""
    names = list(rows[0])
    head = "".join(f"<th>{escape(name)}" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell(row.get(name)))}" for name in names) for row in rows)
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    return f"{heading}<table><tr>{head}{body}</table>"


def cell(value: Any) -> str:
    """Return a value as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell(one)}" for name, one in value.items() if one is not None)
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    return str(value)


def limits_of(allowed: Allowance) -> dict[str, Any]:
    """Return what is allowed, as the settings write it; None for what is not limited."""
    limits: dict[str, Any] = {
        "requests": rate_text(allowed.requests),
        "tokens": rate_text(allowed.tokens),
        "concurrency": allowed.concurrency or None,
        "quota": quota_text(allowed.quota),
        "quota_requests": quota_text(allowed.quota_requests),
    }
    if isinstance(allowed, Tier):
        limits["models"] = {model: limits_of(of_model) for model, of_model in allowed.models.items()}
    return limits


def rate_text(rate: RateOf | None) -> str | None:
    """Return a rate as the settings write it."""
    return None if rate is None else f"{rate.units}/{PERIODS.get(rate.period_s, f'{rate.period_s:g}s')}"


def quota_text(quota: QuotaOf | None) -> str | None:
    """Return a quota as the settings write it."""
    return None if quota is None else f"{quota.units}/{quota.window}"


def hide(value: Any) -> str:
    """Return what stands for a value that plain data has no form for: a secret."""
    if isinstance(value, Secret):
        return "***"
    raise TypeError(type(value).__name__)


def digest_of(settings: Settings) -> str:
    """Return a short digest by which two gateways can be told to have the same settings, secrets aside."""
    return hashlib.sha256(msgspec.json.encode(settings, enc_hook=hide, order="sorted")).hexdigest()[:12]
