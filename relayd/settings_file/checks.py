"""What no single setting shows: settings that contradict each other, names of nothing.

Each check looks at finished Settings and reports where the file (or else the command line) says so.  Where a
setting is wrong by itself already, nothing more is said about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping

from relayd.auth.files import is_world_readable
from relayd.auth.material import is_wanted
from relayd.config import Settings
from relayd.readers import is_loopback, quoted, split_address
from relayd.registry import plugins
from relayd.settings_file.problems import Path, Place, Problems
from relayd.settings_file.schema import duration_as_written
from relayd.settings_file.walk import SecretFound

USUAL_BALANCER_KEEPALIVE_S = 60.0  # nginx, haproxy, AWS ALB


class View:
    """Settings, and where each of them is written."""

    def __init__(
        self,
        settings: Settings,
        problems: Problems,
        place: Callable[[Path], Place],
        written: Collection[Path],
        raws: Mapping[Path, str],
    ) -> None:
        self.settings = settings
        self.problems = problems
        self.place = place
        self._written = written
        self.raws = raws

    def is_written(self, *path: str) -> bool:
        """True if somebody wrote this setting, rightly or wrongly."""
        return path in self._written

    def is_any_written(self, paths: Iterable[Path]) -> bool:
        """True if one of these was written."""
        return any(path in self._written for path in paths)

    def is_right(self, *path: str | int) -> bool:
        """True if nothing is wrong with a setting, with what it is part of, or with its parts."""
        return not self.problems.touches(path)

    def shown(self, path: Path, value: str) -> str:
        """Return a value for a message: the placeholder it came by, if it did."""
        return quoted(self.raws.get(path, value))

    def file(self, path: Path, file: str) -> str:
        """Return a file's path for a message: the placeholder it came by, if it did."""
        shown = self.raws.get(path, file)
        return shown if shown.isprintable() else ascii(shown)

    def close_to(self, path: Path, value: str, choices: Iterable[str]) -> str:
        """Return a hint at the closest of `choices`, or at all of them."""
        known = list(choices)
        close = [] if path in self.raws else difflib.get_close_matches(value, known, n=1)
        return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(map(repr, known[:20]))

    def error(self, path: Path, message: str, hint: str = "") -> None:
        """Report an error, unless it is about what is wrong already."""
        if not self.problems.touches(path):
            self.problems.error(self.place(path), path, message, hint)

    def warn(self, path: Path, message: str, hint: str = "") -> None:
        """Report a warning, unless it is about what is wrong already."""
        if not self.problems.touches(path):
            self.problems.warn(self.place(path), path, message, hint)


def check_all(view: View, secrets: Collection[SecretFound], file: str, insecure: bool) -> None:
    """Report all that is wrong across settings."""
    check_policy(view)
    check_workers_of_models(view)
    check_names_of_models(view)
    check_named_models(view)
    check_workers(view)
    check_addresses(view)
    check_exposure(view, insecure)
    check_balancer(view)
    check_times(view)
    check_sizes(view)
    check_secrets(view, secrets, file)
    if not view.settings.workers:
        view.error((), "there are no workers", "add workers: {NAME: {url: http://HOST:PORT}}")


# --- names ------------------------------------------------------------------------------------------


def check_policy(view: View) -> None:
    """A policy is one of those there are."""
    known, policy = plugins("routing"), view.settings.policy
    if policy not in known:
        path = ("policy",)
        view.error(
            path, f"there is no policy {view.shown(path, policy)}", view.close_to(path, policy, sorted(known))
        )


def check_workers_of_models(view: View) -> None:
    """A model's targets are workers, each once."""
    for model, settings in view.settings.models.items():
        if not settings.targets:
            view.error(("models", model, "targets"), "no worker serves this model", "write [NAME]")
        seen: set[tuple[str, str]] = set()
        for index, target in enumerate(settings.targets):
            path: Path = ("models", model, "targets", index, "worker")
            if view.settings.workers and target.worker not in view.settings.workers:
                message = f"there is no worker {view.shown(path, target.worker)}"
                view.error(path, message, view.close_to(path, target.worker, view.settings.workers))
            elif (target.worker, target.model) in seen:
                view.error(path, f"{view.shown(path, target.worker)} is a target twice", "take one out")
            seen.add((target.worker, target.model))


def check_names_of_models(view: View) -> None:
    """A name means one model."""
    models, owners = view.settings.models, dict[str, str]()
    for model, settings in models.items():
        for index, alias in enumerate(settings.aliases):
            path: Path = ("models", model, "aliases", index)
            if alias in models:
                view.error(path, f"{view.shown(path, alias)} is a model itself", "choose another alias")
            elif alias in owners:
                message = f"{view.shown(path, alias)} is an alias of {quoted(owners[alias])} already"
                view.error(path, message, "choose another alias")
            owners.setdefault(alias, model)


def check_named_models(view: View) -> None:
    """Limits and passthrough name models that are there, if the file says which there are."""
    models = view.settings.models
    named: list[tuple[Path, str]] = [
        (("passthrough", prefix), model) for prefix, model in view.settings.passthrough.items()
    ]
    if not models:
        for path, model in named:
            shown, hint = view.shown(path, model), f"add models: {{{model}: {{targets: [NAME]}}}}"
            if path in view.raws:
                hint = "add models"
            view.error(path, f"there is no model {shown} among those that are declared", hint)
        return
    for tier, limits in view.settings.limits.tiers.items():
        named += [(("limits", "tiers", tier, "models", model), model) for model in limits.models]
    for path, model in named:
        if model not in models:
            hint = next(
                (f"write {name!r}, whose alias it is" for name in models if model in models[name].aliases), ""
            )
            view.error(
                path,
                f"there is no model {view.shown(path, model)}",
                hint or view.close_to(path, model, models),
            )


def check_workers(view: View) -> None:
    """No worker is there twice by mistake, and none is sent two credentials in one header."""
    first: dict[object, str] = {}
    for name, worker in view.settings.workers.items():
        secrets = (worker.key.reveal(), *((header, text.reveal()) for header, text in worker.headers.items()))
        other = first.setdefault((worker.url, worker.dialect, secrets), name)
        if other != name:
            message = f"this is {quoted(other)} again: it would get the requests of both"
            view.warn(("workers", name, "url"), message, "take one out, if they are one and the same")
        line = "x-api-key" if worker.dialect == "anthropic" else "authorization"
        if worker.key and line in worker.headers:
            message = "the key is sent in this header, too, and a worker takes but one"
            view.error(("workers", name, "headers", line), message, "keep one of the two")


def check_addresses(view: View) -> None:
    """Clients and admin have addresses of their own."""
    listen, admin = view.settings.listen, view.settings.admin
    if admin != "off" and overlap(listen, admin):
        at = "listen" if view.is_written("listen") and not view.is_written("admin") else "admin"
        other = "admin" if at == "listen" else "listen"
        address = view.shown((other,), getattr(view.settings, other))
        view.error((at,), f"{other} is there, too: {address}", "choose another address for one of the two")


def overlap(one: str, other: str) -> bool:
    """True if two listeners cannot be at these addresses at once."""
    if "unix:" in (one[:5], other[:5]) or "off" in (one, other):
        return one == other
    (host, port), (host_2, port_2) = split_address(one), split_address(other)
    if port != port_2 or not port:
        return False
    hosts = {"127.0.0.1" if name == "localhost" else name for name in (host, host_2)}
    everywhere = {"0.0.0.0"} if not any(":" in name for name in hosts) else {"::"}
    all_of_one_kind = len({":" in name for name in hosts}) == 1
    return len(hosts) == 1 or (all_of_one_kind and bool(everywhere & hosts))


# --- who may ask ------------------------------------------------------------------------------------


def check_exposure(view: View, insecure: bool) -> None:
    """What other machines can reach asks who they are, unless told otherwise."""
    if view.settings.listen == "off":
        view.error(("listen",), "off would serve nobody", "write HOST:PORT")
    for name, message in exposures(view.settings):
        report = view.warn if insecure else view.error
        hint = (
            "" if insecure else "choose an address on 127.0.0.1, or say --insecure if that is what you want"
        )
        if name == "listen" and view.problems.touches(("auth",)):
            continue  # they would be authenticated if that was right
        shown = view.shown((name,), getattr(view.settings, name))
        report((name,), f"{shown} {message}", hint)
    if view.settings.limits.tiers and not is_wanted(view.settings.auth):
        view.warn(("limits", "tiers"), "without auth there are no tenants, and no tier applies", "add auth")


def exposures(settings: Settings) -> list[tuple[str, str]]:
    """Return (setting, what is wrong) of each address that anybody on the network can use."""
    found = []
    if is_exposed(settings.listen) and not is_wanted(settings.auth):
        found.append(("listen", "can be reached from other machines, and nobody is authenticated"))
    if is_exposed(settings.admin):
        found.append(("admin", "can be reached from other machines, and nobody is authenticated there"))
    return found


def is_exposed(address: str) -> bool:
    """True if other machines can connect to it."""
    if address == "off" or address.startswith("unix:"):
        return False
    return not is_loopback(split_address(address)[0])


# --- secrets ------------------------------------------------------------------------------------------


def check_secrets(view: View, secrets: Collection[SecretFound], file: str) -> None:
    """Secrets are in files of their own, or in the environment."""
    exposed = ", which everybody on this machine can read" if is_world_readable(file) else ""
    for secret in secrets:
        if secret.in_plain_text:
            view.warn(secret.path, f"a secret in this file{exposed}", "write ${NAME} or ${file:PATH} here")
        for source in secret.files:
            if is_world_readable(source):
                view.warn(secret.path, "everybody on this machine can read the file it is in", "chmod o-r it")


# --- figures ----------------------------------------------------------------------------------------


def check_balancer(view: View) -> None:
    """Who listens to other machines is usually behind a balancer."""
    if not is_exposed(view.settings.listen):
        return
    if not view.settings.trusted_proxies:
        view.warn(
            ("listen",),
            "behind a balancer all clients would look like one, since there are no trusted_proxies",
            "add trusted_proxies: [ADDRESS of the balancer]; without one in front, nothing is to be done",
        )
    keepalive = view.settings.front.keepalive
    if view.is_written("front", "keepalive") and 0 < keepalive < USUAL_BALANCER_KEEPALIVE_S:
        view.warn(
            ("front", "keepalive"),
            "a balancer that keeps connections longer, most do for 60s, will use one that was just closed",
            "write more than the balancer has",
        )


def check_times(view: View) -> None:
    """No time is longer than one that ends it."""
    timeouts = ("resilience", "timeouts")
    for name in ("connect", "first_token", "idle", "write"):
        check_order(view, (*timeouts, name), (*timeouts, "total"))
    check_order(view, (*timeouts, "connect"), (*timeouts, "first_token"))
    check_order(view, ("resilience", "breaker", "rest"), ("resilience", "breaker", "longest_rest"))
    if not view.settings.drain_timeout:
        view.warn(
            ("drain_timeout",),
            "a stop takes as long as the longest request",
            "write less than what started relayd waits for it: systemd does for 90s unless told otherwise",
        )


def check_sizes(view: View) -> None:
    """There is room for the largest request."""
    if view.settings.max_held < view.settings.max_body:
        message = "it is less than max_body: the largest requests would never be taken"
        view.warn(("max_held",), message, "write several times max_body")


def check_order(view: View, shorter: tuple[str, ...], longer: tuple[str, ...]) -> None:
    """Warn if a time that somebody wrote never comes, because another one ends it."""
    short_s, long_s = time_at(view.settings, shorter), time_at(view.settings, longer)
    if view.is_written(*shorter) and short_s > long_s > 0:
        view.warn(
            shorter,
            f"it is longer than {'.'.join(longer)} ({duration_as_written(long_s)}), which comes first",
            "write less here, or more there",
        )


def time_at(settings: Settings, path: tuple[str, ...]) -> float:
    """Return the seconds of a setting."""
    value: object = settings
    for name in path:
        value = getattr(value, name)
    assert isinstance(value, float | int)
    return value
