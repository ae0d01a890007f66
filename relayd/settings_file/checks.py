"""What no single setting shows: settings that contradict each other, names of nothing, missing files.

Each check looks at finished Settings and reports where the file (or else the command line) says so.  Where a
setting is wrong by itself already, nothing more is said about it.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping

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
        self._place = place
        self._written = written
        self._raws = raws

    def is_written(self, *path: str) -> bool:
        """True if somebody wrote this setting, rightly or wrongly."""
        return path in self._written

    def is_any_written(self, paths: Iterable[Path]) -> bool:
        """True if one of these was written."""
        return any(path in self._written for path in paths)

    def shown(self, path: Path, value: str) -> str:
        """Return a value for a message: the placeholder it came by, if it did."""
        return quoted(self._raws.get(path, value))

    def close_to(self, path: Path, value: str, choices: Iterable[str]) -> str:
        """Return a hint at the closest of `choices`, or at all of them."""
        known = list(choices)
        close = [] if path in self._raws else difflib.get_close_matches(value, known, n=1)
        return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(map(repr, known[:20]))

    def error(self, path: Path, message: str, hint: str = "") -> None:
        """Report an error, unless it is about what is wrong already."""
        if not self.problems.touches(path):
            self.problems.error(self._place(path), path, message, hint)

    def warn(self, path: Path, message: str, hint: str = "") -> None:
        """Report a warning, unless it is about what is wrong already."""
        if not self.problems.touches(path):
            self.problems.warn(self._place(path), path, message, hint)


def check_all(view: View, secrets: Collection[SecretFound], file: str, insecure: bool) -> None:
    """Report all that is wrong across settings."""
    check_policy(view)
    check_workers_of_models(view)
    check_names_of_models(view)
    check_named_models(view)
    check_jwt(view)
    check_tls(view)
    check_files(view)
    check_exposure(view, insecure)
    check_balancer(view)
    check_times(view)
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
    if not models:
        return
    named: list[tuple[Path, str]] = [
        (("passthrough", prefix), model) for prefix, model in view.settings.passthrough.items()
    ]
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


# --- who may ask ------------------------------------------------------------------------------------


def has_auth(settings: Settings) -> bool:
    """True if anybody is authenticated."""
    jwt = settings.auth.jwt
    return bool(jwt.jwks or jwt.public_key or jwt.secret or settings.auth.keys)


def check_jwt(view: View) -> None:
    """Every algorithm has one source of keys, and every source an algorithm."""
    jwt, path = view.settings.auth.jwt, ("auth", "jwt")
    public = [name for name in ("jwks", "public_key") if getattr(jwt, name)]
    others = [name for name in jwt.algorithms if name != "HS256"]
    if not public and not jwt.secret:
        if view.is_written(*path):
            view.error(path, "there are no keys to check tokens with", "add jwks, public_key or secret")
        return
    if len(public) > 1:
        view.error((*path, "public_key"), "there is jwks as well", "keep one of the two")
    if not jwt.algorithms:
        view.error((*path, "algorithms"), "no signature is accepted", "write [RS256]")
    if others and not public:
        view.error(
            (*path, "algorithms"),
            f"{others[0]} needs jwks or public_key",
            "write [HS256] if there is only a secret",
        )
    if public and jwt.algorithms and not others:
        view.error((*path, public[0]), "none of the algorithms uses it", "add RS256 to algorithms")
    if jwt.secret and jwt.algorithms and "HS256" not in jwt.algorithms:
        view.error((*path, "secret"), "none of the algorithms uses it", "add HS256 to algorithms")
    if "HS256" in jwt.algorithms and not jwt.secret:
        view.error((*path, "algorithms"), "HS256 needs a secret", "add secret: ${NAME}")
    if jwt.secret_kid and not jwt.secret:
        view.error((*path, "secret_kid"), "there is no secret that it names", "add secret: ${NAME}")
    if public and not jwt.audience:
        view.warn(path, "tokens that were made for other services are accepted, too", "add audience: NAME")


def check_exposure(view: View, insecure: bool) -> None:
    """What other machines can reach asks who they are, unless told otherwise."""
    if view.settings.listen == "off":
        view.error(("listen",), "off would serve nobody", "write HOST:PORT")
    for name, message in exposures(view.settings):
        report = view.warn if insecure else view.error
        hint = (
            "" if insecure else "choose an address on 127.0.0.1, or say --insecure if that is what you want"
        )
        shown = view.shown((name,), getattr(view.settings, name))
        report((name,), f"{shown} {message}", hint)
    if view.settings.limits.tiers and not has_auth(view.settings):
        view.warn(("limits", "tiers"), "without auth there are no tenants, and no tier applies", "add auth")


def exposures(settings: Settings) -> list[tuple[str, str]]:
    """Return (setting, what is wrong) of each address that anybody on the network can use."""
    found = []
    if is_exposed(settings.listen) and not has_auth(settings):
        found.append(("listen", "can be reached from other machines, and nobody is authenticated"))
    if is_exposed(settings.admin):
        found.append(("admin", "can be reached from other machines, and nobody is authenticated there"))
    return found


def is_exposed(address: str) -> bool:
    """True if other machines can connect to it."""
    if address == "off" or address.startswith("unix:"):
        return False
    return not is_loopback(split_address(address)[0])


# --- files ------------------------------------------------------------------------------------------


def check_tls(view: View) -> None:
    """A certificate has a key."""
    tls = view.settings.tls
    if tls.cert and not tls.key:
        view.error(("tls",), "there is a cert and no key", "add key: PATH")
    if tls.key and not tls.cert:
        view.error(("tls",), "there is a key and no cert", "add cert: PATH")


def check_files(view: View) -> None:
    """Files that are named are there and can be read; those with secrets, by nobody else."""
    settings = view.settings
    jwks = settings.auth.jwt.jwks
    named: list[tuple[Path, str, bool]] = [
        (("tls", "cert"), settings.tls.cert, False),
        (("tls", "key"), settings.tls.key, True),
        (("worker_tls", "ca"), settings.worker_tls.ca, False),
        (("auth", "jwt", "jwks"), "" if "://" in jwks else jwks, False),
        (("auth", "jwt", "public_key"), settings.auth.jwt.public_key, False),
        (("auth", "keys"), settings.auth.keys, True),
    ]
    for path, file, is_secret in named:
        if file:
            check_file(view, path, file, is_secret)
    for index, sink in enumerate(settings.log.sinks):
        directory = os.path.dirname(sink.removeprefix("file:")) or "."
        if sink.startswith("file:") and not os.path.isdir(directory):
            view.error(("log", "sinks", index), "there is no such directory to write to", "make it")


def check_file(view: View, path: Path, file: str, is_secret: bool) -> None:
    """Report a file that cannot be read, and a secret one that everybody can read."""
    shown = view.shown(path, file)
    try:
        with open(file, "rb"):
            pass
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        view.error(
            path, f"{shown} cannot be read: {said}", "a relative path begins where the settings file is"
        )
        return
    if is_secret and is_for_all(file):
        view.warn(path, f"everybody on this machine can read {shown}", "chmod o-r it")


def is_for_all(file: str) -> bool:
    """True if every user may read a file."""
    try:
        return bool(os.stat(file).st_mode & stat.S_IROTH)
    except OSError:
        return False


def check_secrets(view: View, secrets: Collection[SecretFound], file: str) -> None:
    """Secrets are in files of their own, or in the environment."""
    exposed = ", which everybody on this machine can read" if is_for_all(file) else ""
    for secret in secrets:
        if secret.in_plain_text:
            view.warn(secret.path, f"a secret in this file{exposed}", "write ${NAME} or ${file:PATH} here")
        for source in secret.files:
            if is_for_all(source):
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
