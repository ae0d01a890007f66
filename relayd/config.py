"""Every setting: its name, type, unit, default and meaning.

Settings are frozen structs; the field's annotation says how its text is read, in a file (`settings_file`)
and on the command line.  `apply` changes one of them by its dotted path, as
`--set resilience.timeouts.idle=30s` does; a tail that names only one setting (`timeouts.idle`, `idle`) is
enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from relayd.readers import (
    QuotaOf,
    RateOf,
    Secret,
    SettingError,
    kind_of,
    read_address,
    read_choice,
    read_count,
    read_credential,
    read_duration,
    read_header_name,
    read_jwt_secret,
    read_key_source,
    read_mode,
    read_name,
    read_network,
    read_path,
    read_positive,
    read_prefix,
    read_quota,
    read_rate,
    read_share,
    read_sink,
    read_size,
    read_switch,
    read_text,
    read_worker_url,
)
from relayd.registry import did_you_mean

# How a setting is written in a file: an annotation has one of these beside its meaning.
#   read    the text of a scalar -> the value
#   item    the text of each item of a list -> an item (with --set: separated by commas)
#   table   a mapping by name -> {name: struct}; the reader is for the names
#   rows    a list of structs; a plain scalar instead of one means {that field: scalar}


def _items(reader: Callable[[str], Any], meaning: str) -> msgspec.Meta:
    return msgspec.Meta(description=meaning, extra={"item": reader})


def _table(name_reader: Callable[[str], str], meaning: str) -> msgspec.Meta:
    return msgspec.Meta(description=meaning, extra={"table": name_reader})


def _texts(name_reader: Callable[[str], str], reader: Callable[[str], Any], meaning: str) -> msgspec.Meta:
    return msgspec.Meta(description=meaning, extra={"table": name_reader, "read": reader})


def _rows(shorthand: str, meaning: str) -> msgspec.Meta:
    return msgspec.Meta(description=meaning, extra={"rows": shorthand})


def _unit(reader: Callable[[str], Any], meaning: str) -> msgspec.Meta:
    return msgspec.Meta(description=meaning, extra={"read": reader})


# --- settings ---------------------------------------------------------------------------------------


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long each part of a request may take."""

    connect: Annotated[float, _unit(read_duration, "a connection to a worker")] = 2.0
    first_token: Annotated[
        float, _unit(read_duration, "from the request's last byte to the first content of the answer")
    ] = 600.0
    idle: Annotated[float, _unit(read_duration, "silence of a worker in the middle of an answer")] = 300.0
    write: Annotated[float, _unit(read_duration, "a client that takes nothing of its answer")] = 60.0
    total: Annotated[float, _unit(read_duration, "the whole request")] = 3600.0


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When another worker is tried, before anything of an answer was passed on."""

    attempts: Annotated[int, _unit(read_count, "further workers that are tried for one request")] = 2
    budget: Annotated[
        float, _unit(read_share, "retries as a share of successes; 3 a second are always allowed")
    ] = 0.2


class Breaker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a worker is left alone for a while."""

    consecutive: Annotated[int, _unit(read_count, "failures in a row after which a worker rests")] = 5
    rest: Annotated[float, _unit(read_duration, "the first rest; each further one is twice as long")] = 5.0
    longest_rest: Annotated[float, _unit(read_duration, "no rest is longer")] = 300.0


class Resilience(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens when things fail."""

    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
    breaker: Breaker = Breaker()


class Front(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients may do to a connection."""

    head_timeout: Annotated[float, _unit(read_duration, "from the first byte of a head to its last")] = 10.0
    body_timeout: Annotated[float, _unit(read_duration, "a request body that makes no progress")] = 30.0
    keepalive: Annotated[float, _unit(read_duration, "a connection without a request")] = 75.0
    max_head: Annotated[int, _unit(read_size, "a request's head")] = 64 << 10
    max_connections: Annotated[int, _unit(read_count, "open client connections; 0 is no bound")] = 0


class PerAddress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often one address may ask, whoever it is."""

    rate: Annotated[
        RateOf | None, _unit(read_rate, "requests of one client address (IPv6: one /64), or off")
    ] = None
    burst: Annotated[int, _unit(read_positive, "of them at once")] = 100


_RATE_REQUESTS = Annotated[RateOf | None, _unit(read_rate, "requests of one tenant, or off")]
_RATE_TOKENS = Annotated[
    RateOf | None, _unit(read_rate, "tokens of one tenant, prompts and answers together, or off")
]
_CONCURRENCY = Annotated[int, _unit(read_count, "requests of one tenant at the same time; 0 is no bound")]
_QUOTA = Annotated[
    QuotaOf | None, _unit(read_quota, "tokens of one tenant in each hour, day or month, or off")
]
_QUOTA_REQUESTS = Annotated[
    QuotaOf | None, _unit(read_quota, "requests of one tenant in each hour, day or month, or off")
]


class Allowance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a tenant may ask of one model, within all that it may ask."""

    requests: _RATE_REQUESTS = None
    tokens: _RATE_TOKENS = None
    concurrency: _CONCURRENCY = 0
    quota: _QUOTA = None
    quota_requests: _QUOTA_REQUESTS = None


class Tier(Allowance, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much each tenant of a tier may ask."""

    models: Annotated[dict[str, Allowance], _table(read_name, "further limits, by model")] = {}


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be asked for."""

    per_address: PerAddress = PerAddress()
    tiers: Annotated[
        dict[str, Tier], _table(read_name, "limits by tier; tenants without one are in `default`")
    ] = {}


class Jwt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens that somebody else signs."""

    algorithms: Annotated[
        tuple[str, ...],
        _items(read_choice("RS256", "HS256", "ES256", "EdDSA"), "signatures that are accepted"),
    ] = ("RS256",)
    jwks: Annotated[str, _unit(read_key_source, "URL or file of the public keys")] = ""
    public_key: Annotated[str, _unit(read_path, "PEM file of the one public key")] = ""
    secret: Annotated[
        Secret, _unit(read_jwt_secret, "for HS256: 32 bytes or more; hex: or base64: before binary ones")
    ] = Secret("")
    secret_kid: Annotated[str, _unit(read_text, "the kid that names it, where there are other keys")] = ""
    issuer: Annotated[str, _unit(read_text, "what iss must be, to the letter")] = ""
    audience: Annotated[str, _unit(read_text, "what aud must be or contain")] = ""
    leeway: Annotated[float, _unit(read_duration, "how far clocks may be apart")] = 30.0
    max_lifetime: Annotated[float, _unit(read_duration, "from now to a token's end, at most")] = 30 * 86400.0
    tenant_claim: Annotated[str, _unit(read_text, "the claim that says who asks")] = "sub"
    tier_claim: Annotated[str, _unit(read_text, "the claim that says the tier, if a token has it")] = "tier"
    models_claim: Annotated[
        str, _unit(read_text, "the claim that lists the models a token is for, if it has it")
    ] = "models"
    max_age: Annotated[float, _unit(read_duration, "keys from a URL are fetched again after this")] = 600.0
    stale_for: Annotated[
        float, _unit(read_duration, "how long the last keys serve while their URL does not answer")
    ] = 86400.0


class Auth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may ask.  Without any of it everybody may."""

    jwt: Jwt = Jwt()
    keys: Annotated[str, _unit(read_path, "YAML file with the hashes of API keys")] = ""
    failures: Annotated[
        RateOf | None, _unit(read_rate, "wrong credentials of one address before it must wait, or off")
    ] = RateOf(60, 60.0)


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS towards clients."""

    cert: Annotated[str, _unit(read_path, "PEM file of the certificate and its chain")] = ""
    key: Annotated[str, _unit(read_path, "PEM file of its key")] = ""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One inference endpoint."""

    url: Annotated[str, _unit(read_worker_url, "where it is: no path, that is the client's")]
    key: Annotated[Secret, _unit(read_credential, "the credential that it wants")] = Secret("")
    dialect: Annotated[
        str,
        _unit(read_choice("openai", "anthropic"), "where it wants the key: Authorization, or x-api-key"),
    ] = "openai"
    headers: Annotated[
        dict[str, Secret], _texts(read_header_name, read_credential, "further headers of every request to it")
    ] = {}


class TargetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker that serves a model."""

    worker: Annotated[str, _unit(read_name, "the worker's name")]
    model: Annotated[str, _unit(read_text, "the model's name there, if it is another")] = ""


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that clients may ask for."""

    targets: Annotated[tuple[TargetSettings, ...], _rows("worker", "the workers that serve it")]
    aliases: Annotated[tuple[str, ...], _items(read_name, "further names for it")] = ()


class Log(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line a request."""

    format: Annotated[str, _unit(read_choice("json"), "how a line is written")] = "json"
    sinks: Annotated[tuple[str, ...], _items(read_sink, "where lines go: stdout, file:PATH")] = ()


class WorkerTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS towards workers whose URL begins with https://."""

    verify: Annotated[bool, _unit(read_switch, "check the worker's certificate and name")] = True
    ca: Annotated[str, _unit(read_path, "file with the certificate authorities to trust")] = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings."""

    listen: Annotated[str, _unit(read_address, "where clients connect")] = "127.0.0.1:8080"
    admin: Annotated[str, _unit(read_address, "where health and metrics are served, or off")] = (
        "127.0.0.1:9901"
    )
    socket_mode: Annotated[
        int, _unit(read_mode, "who may connect to a unix: listen or admin, as chmod takes it")
    ] = 0o660
    trusted_proxies: Annotated[
        tuple[str, ...],
        _items(read_network, "whose X-Forwarded-* is believed; unix: on Unix sockets"),
    ] = ()
    max_body: Annotated[int, _unit(read_size, "a request's body")] = 64 << 20
    max_held: Annotated[int, _unit(read_size, "request bodies held in memory, all together")] = 1 << 30
    policy: Annotated[str, _unit(read_text, "how a worker is chosen")] = "least_tokens"
    engine: Annotated[
        str,
        _unit(
            read_choice("openai", "vllm", "sglang"),
            "what the workers are; vllm and sglang are asked for usage on streams",
        ),
    ] = "openai"
    on_disconnect: Annotated[
        str,
        _unit(read_choice("cancel", "drain"), "what becomes of a request whose client has left"),
    ] = "cancel"
    sse_keepalive: Annotated[
        float, _unit(read_duration, "silence after which a waiting stream client gets a sign of life, or off")
    ] = 0.0
    reveal: Annotated[
        bool, _unit(read_switch, "name the worker (x-relayd-worker) and the times (server-timing)")
    ] = True
    drain_delay: Annotated[
        float, _unit(read_duration, "from not ready to not accepting, after TERM, for balancers to notice")
    ] = 2.0
    drain_timeout: Annotated[
        float, _unit(read_duration, "what running requests may take after TERM; off waits for the last one")
    ] = 60.0
    front: Front = Front()
    tls: Tls = Tls()
    auth: Auth = Auth()
    limits: Limits = Limits()
    log: Log = Log()
    resilience: Resilience = Resilience()
    worker_tls: WorkerTls = WorkerTls()
    workers: Annotated[dict[str, WorkerSettings], _table(read_name, "inference endpoints by name")] = {}
    models: Annotated[
        dict[str, ModelSettings],
        _table(read_name, "models by name; without any, those that the workers list"),
    ] = {}
    passthrough: Annotated[
        dict[str, str],
        _texts(read_prefix, read_name, "paths that relayd does not know, by prefix: to that model's workers"),
    ] = {}


# --- by path ----------------------------------------------------------------------------------------


def every_setting(struct: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, annotation) of every setting that has one; tables and rows are a file's."""
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if get_origin(hint) is Annotated:
            if not {"table", "rows"} & how_written(hint).keys():
                yield prefix + name, hint
        else:
            yield from every_setting(hint, f"{prefix}{name}.")


def every_key(struct: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, annotation) of all that a file may say; in a table NAME is a name, [] is a row."""
    for name, hint in get_type_hints(struct, include_extras=True).items():
        path = prefix + name
        if get_origin(hint) is not Annotated:
            yield from every_key(hint, path + ".")
            continue
        yield path, hint
        written = how_written(hint)
        if "rows" in written:
            yield from every_key(entry_type(hint), path + "[].")
        elif "table" in written and "read" not in written:
            yield from every_key(entry_type(hint), path + ".NAME.")


def entry_type(hint: Any) -> Any:
    """Return what a table or a list has as its entries: T of dict[str, T] and of tuple[T, ...]."""
    return next(part for part in reversed(get_args(get_args(hint)[0])) if part is not ...)


def how_written(hint: Any) -> dict[str, Any]:
    """Return the readers of an annotation: see above the settings."""
    meta = next(part for part in get_args(hint) if isinstance(part, msgspec.Meta))
    return meta.extra or {}


def find_path(key: str) -> str:
    """Return the full path of the setting that `key`, a path or the tail of one, names."""
    paths = [path for path, _ in every_setting()]
    if key in paths:
        return key
    tails = [path for path in paths if path.endswith("." + key)]
    if len(tails) == 1:
        return tails[0]
    if tails:
        raise SettingError(f"{key!r} could be {' or '.join(tails)}")
    ends = {path.split(".", depth)[-1] for path in paths for depth in range(3)}
    raise SettingError(f"there is no setting {key!r}{did_you_mean(key, ends)}")


def apply(settings: Settings, assignment: str) -> Settings:
    """Return `settings` with `KEY=VALUE` applied.

    Raises:
        SettingError: no such key, or a value it does not take.
    """
    key, equals, text = assignment.partition("=")
    if not equals:
        raise SettingError(f"--set takes KEY=VALUE, not {assignment!r}")
    path = find_path(key.strip())
    written = how_written(dict(every_setting())[path])
    if "read" in written and kind_of(written["read"]).is_secret:
        raise SettingError(f"{path}: everybody here can see a command's arguments; put it in a settings file")
    try:
        if "item" in written:
            value: Any = tuple(written["item"](part.strip()) for part in text.split(",") if part.strip())
        else:
            value = written["read"](text.strip())
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None
    changed: Settings = _replace(settings, path.split("."), value)
    return changed


def _replace(struct: Any, names: list[str], value: Any) -> Any:
    if len(names) > 1:
        value = _replace(getattr(struct, names[0]), names[1:], value)
    return msgspec.structs.replace(struct, **{names[0]: value})
