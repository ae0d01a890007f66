"""A settings file is read as a person wrote it, and everything that is wrong with it is said at once."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relayd.config import Settings, entry_type, every_key, how_written
from relayd.readers import RateOf, Secret, SettingError, kind_of
from relayd.settings_file import Problem, load, one_line, read_file
from relayd.settings_file.excerpts import MASK
from relayd.settings_file.fill import Filler
from relayd.settings_file.problems import MOST_PROBLEMS, Problems
from relayd.settings_file.text import MOST_BYTES, compose, read_text
from relayd.settings_file.walk import Walk, declared
from tests.auth.stage import P256, jwk
from tests.support.certificates import Authority

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

WORKER = "workers: {w: {url: 'http://127.0.0.1:1'}}\n"


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a settings file and returns its path."""

    def write(content: str | bytes, mode: int = 0o600) -> str:
        path = tmp_path / "relayd.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return str(path)

    return write


KEYS = "- {sha256: " + "0f" * 32 + ", tenant: a}\n"


def put_files(folder: Path, *names: str) -> None:
    """Write files that can be used, for nobody else to read: what is in them, their names say."""
    Authority(folder).server("localhost")
    pair = (folder / "localhost.pem").read_text()
    for name in names:
        text = {"own": "x", "all": "x", "keys": KEYS, "keys.yaml": KEYS}.get(name, pair)
        if name == "j":
            text = json.dumps({"keys": [jwk(P256)]})
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)


def problems_of(path: str, **how: Any) -> list[Problem]:
    return read_file(path, **how)[1]


def errors_of(path: str) -> list[Problem]:
    return [problem for problem in problems_of(path) if problem.severity == "error"]


def warnings_of(path: str, **how: Any) -> list[Problem]:
    return [problem for problem in problems_of(path, **how) if problem.severity == "warning"]


# --- what is read ---------------------------------------------------------------------------------------


def test_a_file_becomes_settings(written, monkeypatch):
    monkeypatch.setenv("VENDOR_KEY", "sk-1")
    path = written("""\
listen: "[::1]:8080"
reveal: off
policy: round_robin
auth: {jwt: {audience: 0x10, jwks: "https://id.example.com/jwks", algorithms: [ES256, EdDSA]}}
limits:
  per_address: {rate: off}
  tiers: {gold: {requests: 10/s, models: {m: {tokens: 1M/min}}}}
workers:
  a: {url: "http://127.0.0.1:1/"}
  22:00: {url: "https://h", key: "${VENDOR_KEY}", headers: {X-Org: "${VENDOR_KEY}"}, dialect: anthropic}
models:
  m: {targets: [a, {worker: 22:00, model: other}], aliases: [yes, 1e3]}
passthrough: {/: m}
""")
    found, problems = read_file(path)
    assert [one_line("f", problem) for problem in problems] == []
    assert found == load(path)
    assert (found.listen, found.reveal, found.policy) == ("[::1]:8080", False, "round_robin")
    assert found.auth.jwt.audience == "0x10"
    assert found.auth.jwt.algorithms == ("ES256", "EdDSA")
    assert found.limits.per_address.rate is None
    assert found.limits.tiers["gold"].models["m"].tokens == RateOf(10**6, 60.0)
    assert found.workers["a"].url == "http://127.0.0.1:1"
    assert found.workers["22:00"].key.reveal() == "sk-1"
    assert found.workers["22:00"].headers["x-org"].reveal() == "sk-1"
    assert [(target.worker, target.model) for target in found.models["m"].targets] == [
        ("a", ""),
        ("22:00", "other"),
    ]
    assert found.models["m"].aliases == ("yes", "1e3")
    assert found.passthrough == {"/": "m"}


def test_what_is_not_written_has_its_default(written):
    found = load(written(WORKER))
    assert msgspec.structs.replace(found, workers={}) == Settings()


def test_an_alias_repeats_what_was_marked(written):
    path = written(WORKER + "limits: {tiers: {a: &a {requests: 5/s}, b: *a}}\n")
    tiers = load(path).limits.tiers
    assert tiers["a"] == tiers["b"]


def test_a_block_of_text_ends_without_its_newline(written):
    assert (
        load(written(WORKER + "auth: {jwt: {jwks: 'https://h'}}\npolicy: |\n  least_conn\n")).policy
        == "least_conn"
    )


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_editors_add_changes_nothing(written, mark, end):
    content = mark + (WORKER + "policy: x\n").replace("\n", end).encode()
    (problem,) = errors_of(written(content))
    assert (problem.line, problem.column) == (2, 9)


def test_relative_paths_begin_where_the_file_is(written, tmp_path, monkeypatch):
    put_files(tmp_path, "c", "k", "j", "ca", "keys")
    path = written(
        WORKER
        + "tls: {cert: c, key: ./k}\nworker_tls: {ca: ca}\n"
        + "auth: {jwt: {jwks: j, algorithms: [ES256]}, keys: keys}\n"
        + f"log: {{sinks: [stdout, file:access.log, file:{tmp_path}/x.log]}}\n"
    )
    monkeypatch.chdir("/")
    found = load(path)
    assert Path(found.tls.cert) == tmp_path / "c"
    assert Path(found.tls.key) == tmp_path / "k"
    assert Path(found.auth.jwt.jwks) == tmp_path / "j"
    assert Path(found.auth.keys) == tmp_path / "keys"
    assert Path(found.worker_tls.ca) == tmp_path / "ca"
    assert found.log.sinks == ("stdout", f"file:{tmp_path}/access.log", f"file:{tmp_path}/x.log")


# Every setting of the declaration, by a text that its reader takes and that is not its default.
TEXTS = ["7s", "7%", "7", "7/min", "7/day", "off", "127.0.0.1:77", "10.0.0.0/8", "drain", "vllm", "anthropic"]
TEXTS += ["0600", "HS256", "stdout", "http://h", "/x", "json", "some-text-that-is-long-enough-for-a-secret"]
# What tables are called and what settings need beside them, so that nothing else is wrong.
NESTED = {
    "workers.NAME": "url: http://h",
    "models.NAME": "targets: [w]",
    "models.NAME.targets[]": "worker: w",
}


def text_for(hint: Any, default: Any) -> str:
    written = how_written(hint)
    reader = written.get("item") or written["read"]
    for text in TEXTS:
        try:
            value = reader(text)
        except SettingError:
            continue
        if value != default:
            return f"[{text}]" if "item" in written else text
    return "[json]" if "item" in written else "json"


def file_with(path: str, text: str) -> tuple[Any, tuple[str, ...]]:
    """Return a YAML tree in which `path` is `text`, and the way to it in Settings."""
    tree: Any = text
    way: list[str] = []
    parts = path.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        part, above = parts[depth], ".".join(parts[: depth + 1])
        beside = dict([NESTED[above].split(": ", 1)]) if above in NESTED else {}
        if beside.get("targets"):
            beside = {"targets": ["w"]}
        if depth < len(parts) - 1 and isinstance(tree, dict):
            tree = {**beside, **tree}
        if part.endswith("[]"):
            tree, part = [tree], part.removesuffix("[]")
            way.insert(0, "0")
        way.insert(0, part)
        tree = {part: tree}
    return tree, tuple(way)


def value_at(value: Any, way: tuple[str, ...]) -> Any:
    for part in way:
        if isinstance(value, dict):
            value = value[part]
        else:
            value = value[int(part)] if isinstance(value, tuple) else getattr(value, part)
    return value


SCALARS = [(path, hint) for path, hint in every_key() if {"read", "item"} & how_written(hint).keys()]


@pytest.mark.parametrize(("path", "hint"), SCALARS, ids=[path for path, _ in SCALARS])
def test_every_setting_arrives_from_a_file(written, tmp_path, path, hint):
    """Through the walk alone: whether settings fit together is another question."""
    if "table" in how_written(hint):
        path += "." + ("/x" if path == "passthrough" else "name")
    reader = how_written(hint).get("item") or how_written(hint)["read"]
    text = text_for(hint, default_of(path))
    tree, way = file_with(path, text)
    file = written(yaml.safe_dump(tree).replace("'[", "[").replace("]'", "]"))
    problems = Problems()
    walk = Walk(problems, Filler("", {}))
    found = value_at(walk.settings(compose(read_text(file))), way)
    assert problems.found == []
    assert found == ((reader(text[1:-1]),) if "item" in how_written(hint) else reader(text))
    assert walk.places[tuple(int(part) if part == "0" else part for part in way)].line > 0


def default_of(path: str) -> Any:
    struct: Any = Settings
    *above, name = path.split(".")
    for part in above:
        if part not in ("NAME", "name", "/x"):
            hint = declared(struct).get(part.removesuffix("[]"))
            struct = hint if isinstance(hint, type) else entry_type(hint)
    if not isinstance(struct, type) or not issubclass(struct, msgspec.Struct):
        return None
    field = next((field for field in msgspec.structs.fields(struct) if field.name == name), None)
    return field.default if field else None


# --- what comes from elsewhere ------------------------------------------------------------------------

FILL = [
    ("plain", "plain"),
    ("$A ${A}x${A}", "$A 1x1"),
    ("${NONE:-d e}", "d e"),
    ("${EMPTY:-d}", "d"),
    ("${A:-d}", "1"),
    ("${NONE:-}x", "x"),
    ("$${A}", "${A}"),
    ("a$${", "a${"),
    ("${file:f}", "in file"),
    ("${file:${DIR}/f}", "in file"),
    ("${file:lines}", "a\n"),
    ("${file:dos}", "a"),
    ("${PLACEHOLDER}", "${A}"),  # once is enough
]


@pytest.fixture
def filler(tmp_path):
    (tmp_path / "f").write_text("in file\n")
    (tmp_path / "lines").write_text("a\n\n")
    (tmp_path / "dos").write_bytes(b"a\r\n")
    (tmp_path / "latin").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b"x" * (64 << 10) + b"x")
    (tmp_path / "fits").write_bytes(b"x" * (64 << 10))
    environment = {"A": "1", "EMPTY": "", "DIR": str(tmp_path), "PLACEHOLDER": "${A}", "BAD": "\udcff"}
    return Filler(str(tmp_path), environment)


@pytest.mark.parametrize(("raw", "text"), FILL)
def test_placeholders(filler, raw, text):
    assert filler.fill(raw).text == text


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("${NONE}", "the variable NONE is not set; set it, or write ${NONE:-DEFAULT}"),
        ("${EMPTY}", "'${EMPTY}' stands for an empty text"),
        ("${}", "between ${ and } stands the name of a variable"),
        ("${1A}", "between ${ and }"),
        ("${A B}", "between ${ and }"),
        ("x${A", "${ is not closed"),
        ("${file:}", "${file:} names no file"),
        ("${file:gone}", "the file 'gone' cannot be read: No such file"),
        ("${file:${NONE}/x}", "the variable NONE is not set"),
        ("${file:.}", "cannot be read: Is a directory"),
        ("${file:latin}", "is not UTF-8 text"),
        ("${file:large}", "is larger than 64 KiB"),
        ("${file:\0}", "cannot be read"),
        ("${BAD}", "the variable BAD is not UTF-8"),
    ],
)
def test_a_placeholder_that_stands_for_nothing(filler, raw, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        filler.fill(raw)


def test_a_file_that_just_fits(filler):
    assert len(filler.fill("${file:fits}").text) == 64 << 10


def test_a_missing_variable_is_said_where_it_is_named(written):
    (problem,) = errors_of(written(WORKER + "policy: ${NO_SUCH_VARIABLE}\n"))
    assert (problem.line, problem.column, problem.path) == (2, 9, "policy")
    assert "the variable NO_SUCH_VARIABLE is not set" in problem.message


CANARY = "canary-4711-canary"
LEAKS = [
    "policy: ${CANARY}",
    "max_body: ${CANARY}",
    "listen: ${CANARY}",
    "listen: ${CANARY}:80",
    "engine: ${CANARY}",
    "trusted_proxies: ['${CANARY}']",
    "tls: {cert: '${CANARY}', key: '${file:canary}'}",
    "worker_tls: {ca: '${CANARY}'}",
    "auth: {keys: '/x/${CANARY}'}",
    "auth: {jwt: {jwks: 'http://${CANARY}/'}}",
    "auth: {jwt: {secret: '${CANARY}', algorithms: [HS256]}}",
    "auth: {jwt: {secret: 'hex:${CANARY}', algorithms: [HS256]}}",
    f"auth: {{jwt: {{secret: '{CANARY}', algorithms: [HS256]}}}}",
    f"auth: {{jwt: {{secret: '${{NONE:-{CANARY}}}', algorithms: [HS256]}}}}",
    f"auth: {{jwt: {{secert: '{CANARY}'}}}}",
    f"auth: {{jwt: {CANARY}}}",
    f"auth: {{jwt: {{secret: [{CANARY}]}}}}",
    f"auth: {{jwt: {{secret: {CANARY}{CANARY}{CANARY}, leeway: 3}}}}",
    f"auth: {{jwt: {{secret: {CANARY}{CANARY}, leeway: 3}}}} # was {CANARY}",
    f"auth:\n  jwt:\n    leeway: 3\n    secret: {CANARY}",
    f"auth:\n  jwt:\n    secret: |\n      {CANARY}\n\tx",
    f"auth:\n  jwt:\n    secret: '{CANARY}",
    f"auth:\n  jwt:\n    secret:{CANARY}\n    x: y",
    f"auth:\n  jwt:\n    secret: {CANARY}: x",
    f"auth:\n  jwt:\n    secret: &{CANARY}",
    f"auth:\n  jwt:\n    secret: *{CANARY}",
    f"auth:\n  jwt:\n    secret: !{CANARY} x",
    f"auth: {{jwt: {{secret: {CANARY}: x}}}}",
    f"auth:\n  jwt:\n    secert: {CANARY}\n\tx",
    f"auth:\n  jwt:\n    issuer: x\n    {CANARY}\n\tx",
    f"auth:\n  keys: {CANARY}\n\tx",
    f"auth:\n  keys:\n    - {CANARY}\n\tx",
    f"auth: {{jwt: {{issuer: x, secert: {CANARY}}}",
    f"auth: {{jwt: {{public_key: {CANARY}, x}}",
    f"limits: {{tokens: {CANARY}, key: {CANARY}",
    f"auth:\n  jwt:\n    secret: '${{NONE_SUCH}}{CANARY}'",
    f"auth:\n  jwt:\n    secret: '${{NONE_SUCH:{CANARY}}}'",
    f"auth: {{keyz: {CANARY}}}",
    f"auth: {{key: {CANARY}}}",
    f"auth: {{jwks: {CANARY}}}",
    f"auth: {{jwt: {{jwk: {CANARY}, isuer: {CANARY}, public_kay: {CANARY}}}}}",
    f"polcy: {CANARY}",
    f"auht: {{jwt: {{secret: {CANARY}, key: {CANARY}}}}}",
    f"worker: {{v: {{url: 'http://h', key: {CANARY}, headers: {{'a b': {CANARY}}}}}}}",
    f"workers: {{'a b': {{url: 'http://h', key: {CANARY}, headers: {{'a b': {CANARY}}}}}}}",
    f"tokens: {CANARY}",
    "models: {m: {targets: [{worker: '${CANARY}'}]}}",
    "models: {m: {targets: [w], aliases: ['${CANARY}', '${CANARY}']}}",
    "models: {m: {targets: [w]}}\npassthrough: {/: '${CANARY}'}",
    "log: {sinks: ['file:/${CANARY}/x']}",
    "log: {sinks: ['${CANARY}']}",
]


@pytest.mark.parametrize("content", LEAKS)
@pytest.mark.parametrize("insecure", [False, True])
def test_what_is_secret_or_comes_from_elsewhere_is_never_shown(
    written, tmp_path, monkeypatch, content, insecure
):
    monkeypatch.setenv("CANARY", CANARY)
    (tmp_path / "canary").write_text(CANARY)
    path = written(
        f"workers: {{w: {{url: 'http://h', key: {CANARY}, headers: {{x-a: {CANARY}}}}}}}\n" + content
    )
    _, problems = read_file(path, insecure=insecure)
    assert problems
    said = "\n".join(f"{one_line(path, problem)}{problem.excerpt}{problem!r}" for problem in problems)
    assert CANARY not in said


def test_no_hint_is_made_from_what_comes_from_elsewhere(written, monkeypatch):
    monkeypatch.setenv("POLICY", "least_con")
    (problem,) = errors_of(written(WORKER + "policy: ${POLICY}\n"))
    assert problem.message == "there is no policy '${POLICY}'"
    assert "did you mean" not in problem.hint


def test_a_secret_is_masked_and_the_rest_of_its_line_is_not(written):
    path = written(WORKER[:-2].replace("'http", "'ftp").replace("}", ", key: 'sk-1'}") + "}\n")
    problem = errors_of(path)[0]
    assert problem.excerpt == (
        f"workers: {{w: {{url: 'ftp://127.0.0.1:1', key: {MASK}}}}}",
        " " * 19 + "^",
    )


SHOWN = [
    ("lisen: 127.0.0.1:80\n", "lisen: 127.0.0.1:80"),
    ("models: {m: {target: [w, v]}}\n", "models: {m: {target: [w, v]}}"),
    ("drain-timeout: 5s\n", "drain-timeout: 5s"),
    ("lisen: {a: b}\n", f"lisen: {{a: {MASK}}}"),
    ("lisen: what is this\n", f"lisen: {MASK}"),
    ("resilence: {timeouts: {idle: 3s}}\n",) * 2,
    ("wrkers: {w: {url: 'http://h', key: abc}}\n", f"wrkers: {{w: {{url: 'http://h', key: {MASK}}}}}"),
    ("models: {a b: {targets: [w]}}\n",) * 2,
    ("passthrough: {v2: m}\n",) * 2,
    ("auth: {jwt: {algorithms: [HS256], secret: '${NONE_SUCH}'}}\n",) * 2,
    ("auth: {jwt: {secret: '${file:gone}'}}\n",) * 2,
    ("auth: {jwt: {secret: '${file:${NONE_SUCH}/jwt}'}}\n",) * 2,
    ("auth:\n  jwt:\n\t  issuer: https://h\n", "   issuer: https://h"),
    ("auth: {jwt: {issuer: https://h, leeway: 3s}\n",) * 2,
    ("policy: least_tokens: x\n",) * 2,
    ("limits: {tiers: {a: {tokens: 5/s}}\n",) * 2,
]


@pytest.mark.parametrize(("content", "shown"), SHOWN)
def test_what_is_no_secret_is_shown(written, content, shown):
    lines = [problem.excerpt[0] for problem in errors_of(written(WORKER + content)) if problem.line > 1]
    assert lines == [shown.rstrip("\n")]


# --- what is wrong ------------------------------------------------------------------------------------

MISTAKES = re.findall(
    r"^=== (.+)\n((?:.*\n)*?)--> (\S+) (.+)$",
    (Path(__file__).parent / "settings_mistakes.txt").read_text(),
    re.MULTILINE,
)
MISTAKES += [
    ("a bracket at the end", "policy: " + "[" * 500, "1:24", "nested deeper than any setting"),
    ("dashes on a line", "- " * 500, "1:33", "nested deeper than any setting"),
    ("a strange character", "policy: x\na: \x07\n", "2:4", "that no text has (U+0007)"),
]


@pytest.mark.parametrize(
    ("content", "place", "parts"),
    [mistake[1:] for mistake in MISTAKES],
    ids=[mistake[0] for mistake in MISTAKES],
)
def test_a_mistake_is_said_where_it_is_and_what_to_do(written, tmp_path, content, place, parts):
    (tmp_path / "long").write_text("x" * 32)
    (tmp_path / "short").write_text("x" * 31)
    (tmp_path / "long").chmod(0o600)
    (tmp_path / "short").chmod(0o600)
    path = written(content)
    found, problems = read_file(path)
    assert found is None
    errors = [problem for problem in problems if problem.severity == "error"]
    assert f"{errors[0].line}:{errors[0].column}" == place, errors
    said = "\n".join(one_line(path, problem) for problem in errors)
    for part in parts.split(" | "):
        assert part in said
    assert len(errors) <= 2, said  # one mistake is no avalanche
    assert errors[0].hint or "such as" in said or ":" in errors[0].message or ";" in errors[0].message, said


def test_all_mistakes_are_said_at_once_and_in_order(written):
    path = written("""\
lisen: 0.0.0.0:8080
max_body: 32mb
auth: {jwt: {leeway: 30}}
workers:
  a: {url: "10.0.0.11:8000"}
  b: {url: "http://h", headers: {x-a: "${NONE_SUCH}"}}
models:
  m: {targets: [c]}
  n: {}
drain_delay:
resilience: {timeouts: {connect: 2, total: 1}}
""")
    assert [(problem.line, problem.column, problem.path) for problem in errors_of(path)] == [
        (1, 1, "lisen"),
        (2, 11, "max_body"),
        (3, 8, "auth.jwt"),
        (3, 22, "auth.jwt.leeway"),
        (5, 12, "workers.a.url"),
        (6, 39, "workers.b.headers.x-a"),
        (8, 17, "models.m.targets[0].worker"),
        (9, 3, "models.n"),
        (10, 1, "drain_delay"),
        (11, 34, "resilience.timeouts.connect"),
        (11, 44, "resilience.timeouts.total"),
    ]


@pytest.mark.parametrize(
    "content",
    [
        "models: {m: {targets: [w]}}\nworkrs: {w: {url: 'http://h'}}\n",
        WORKER[:-3] + "x: 1}}\nmodels: {m: {targets: [w]}}\n",
    ],
)
def test_what_follows_from_a_mistake_is_not_said(written, content):
    assert len(errors_of(written(content))) == 1


def test_one_mistake_seen_through_an_alias_is_said_once(written):
    path = written(WORKER + "limits: {tiers: {a: &a {requests: 5}, b: *a, c: *a}}\n")
    assert len(errors_of(path)) == 1


def test_more_mistakes_than_anybody_reads(written):
    path = written(WORKER + "".join(f"k{number}: 1\n" for number in range(300)))
    errors = errors_of(path)
    assert len(errors) == MOST_PROBLEMS + 1
    assert errors[-1].message == "there are more errors than these"


def test_many_warnings_are_no_error(written):
    workers = "".join(f"  w{number}: {{url: 'http://h', key: k}}\n" for number in range(300))
    found, problems = read_file(written("workers:\n" + workers))
    assert len(found.workers) == 300
    assert len(problems) == MOST_PROBLEMS


# --- files that are none ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        (b"\xff\xfea\x00", "0:0", "UTF-16"),
        ("listen: a".encode("utf-16-be"), "1:1", "that no text has (U+0000)"),
        (b"a: b\nc: \xe9\n", "2:4", "0xe9 is not UTF-8"),
        (b"\x7fELF\x02\x01", "1:1", "that no text has (U+007F)"),
        (b"a: \xed\xa0\x80\n", "1:4", "is not UTF-8"),
        (b"x" * (MOST_BYTES + 1), "0:0", "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_text(written, content, place, message):
    (problem,) = problems_of(written(content))
    assert f"{problem.line}:{problem.column}" == place
    assert message in problem.message
    assert problem.hint


def test_files_that_cannot_be_opened(tmp_path):
    for path, message in [
        (tmp_path / "gone.yaml", "there is no such file"),
        (tmp_path, "this is a directory"),
        (tmp_path / "gone" / "x", "there is no such file"),
        ("/proc/self/mem", "it cannot be read"),
        ("a\0b", "it cannot be read"),
        (tmp_path / ("x" * 300), "it cannot be read"),
        ("/dev/zero", "larger than 1 MiB"),
    ]:
        (problem,) = problems_of(str(path))
        assert message in problem.message


def test_a_file_that_nobody_may_read(written, monkeypatch):
    path = written(WORKER)

    def refuse(*arguments: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    (problem,) = problems_of(path)
    assert "Permission denied" in problem.message


def test_a_billion_laughs_are_few(written):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert len(errors_of(written("\n".join(lines)))) == 30


def test_aliases_multiply_no_further_than_a_bound(written, monkeypatch):
    rows = ", ".join(f"{{worker: w, model: m{number}}}" for number in range(20))
    models = "".join(f"  n{number}: {{targets: *rows}}\n" for number in range(20))
    path = written(WORKER + f"models:\n  m: {{targets: &rows [{rows}]}}\n{models}")
    assert read_file(path)[0] is not None
    monkeypatch.setattr("relayd.settings_file.walk.MOST_VISITS", 1000)
    (problem,) = errors_of(path)
    assert "more than 1,000 values" in problem.message


def test_an_alias_of_itself_ends(written):
    assert errors_of(written("workers: &w {a: {url: 'http://h'}, b: *w}\n"))
    assert errors_of(written("trusted_proxies: &p [*p]\n"))
    assert errors_of(written("&r\nauth: *r\n"))


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_any_bytes_give_problems_and_never_an_exception(written, content):
    _, problems = read_file(written(content))
    assert problems


PIECES = [
    "workers",
    "models",
    "w",
    "url",
    "auth",
    "jwt",
    "secret",
    "http://h",
    "targets",
    ": ",
    ":",
    "\n",
    "\n  ",
    "- ",
]
PIECES += [
    "{",
    "}",
    "[",
    "]",
    ",",
    "'",
    '"',
    "&a ",
    "*a",
    "!x ",
    "|",
    ">",
    "#",
    "%",
    "@",
    "\t",
    "---\n",
    "...",
    "<<",
    "?",
]
PIECES += [
    "${",
    "}",
    "$",
    "file:",
    "~",
    "null",
    "\\x",
    "\\U00110000",
    "é",
    "\u2028",
    "\x85",
    "\ufeff",
    "-",
    " ",
    "0",
]


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_what_looks_like_settings_gives_problems_and_never_an_exception(written, content):
    found, problems = read_file(written(content))
    lines = content.count("\n") + 5 + content.count("\x85") + content.count("\u2028")
    assert found is not None or problems
    assert all(0 <= problem.line <= lines for problem in problems)


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet=string.printable + "é\u2028\x85\ufeff😀", max_size=40))
def test_placeholders_of_any_kind_are_text_or_an_error(raw):
    filler = Filler("/nonexistent", {"A": "1"})
    try:
        text = filler.fill(raw).text
    except SettingError:
        assert "${" in raw
    else:
        assert "${" in raw or text == raw


@settings(deadline=None)
@given(st.text(max_size=50))
def test_any_text_can_be_written_plainly(text):
    raw = text.replace("${", "$${")
    assert Filler("", {}).fill(raw).text == text


# --- warnings -----------------------------------------------------------------------------------------

JWT = "auth: {jwt: {jwks: 'https://h', audience: a}}\n"
OPEN = JWT + "listen: 0.0.0.0:80\n"

WARNINGS = [
    ("a secret", "workers: {w: {url: 'http://h', key: abc}}\n", "workers.w.key", "a secret in this file"),
    (
        "a header",
        "workers: {w: {url: 'http://h', headers: {x-a: b}}}\n",
        "workers.w.headers.x-a",
        "a secret in",
    ),
    (
        "a default",
        "workers: {w: {url: 'http://h', key: '${NONE:-b}'}}\n",
        "workers.w.key",
        "a secret in this file",
    ),
    (
        "a secret file for all",
        "workers: {w: {url: 'http://h', key: '${file:all}'}}\n",
        "workers.w.key",
        "read the file",
    ),
    ("keys for all", WORKER + "auth: {keys: keys}\n", "auth.keys", "everybody on this machine can read"),
    (
        "a tls key for all",
        WORKER + "tls: {cert: pair, key: pair}\n",
        "tls.key",
        "everybody on this machine can read",
    ),
    ("no key", WORKER + "auth: {keys: none}\n", "auth.keys", "there is no key in it: nobody can use a key"),
    (
        "a tier that is none",
        WORKER + "auth: {keys: own-keys}\nlimits: {tiers: {gold: {}}}\n",
        "auth.keys",
        "it has keys of a tier that limits.tiers does not have: silver",
    ),
    (
        "keys for no model that there is",
        WORKER + "auth: {keys: gone-keys}\nmodels: {m: {targets: [w], aliases: [n]}}\n",
        "auth.keys",
        "it has keys for models that are not served: gone",
    ),
    (
        "a key that has expired",
        WORKER + "auth: {keys: over-keys}\n",
        "auth.keys",
        "1 of its keys have expired",
    ),
    (
        "a worker twice",
        "workers: {a: {url: 'http://h'}, b: {url: 'http://h'}}\n",
        "workers.b.url",
        "this is 'a' again",
    ),
    ("no room", WORKER + "max_held: 1MiB\n", "max_held", "less than max_body"),
    ("no trusted proxies", WORKER + OPEN, "listen", "no trusted_proxies"),
    (
        "a short keepalive",
        WORKER + OPEN + "trusted_proxies: ['::1']\nfront: {keepalive: 20s}\n",
        "front.keepalive",
        "balancer",
    ),
    ("no audience", WORKER + "auth: {jwt: {jwks: 'https://h'}}\n", "auth.jwt", "other services"),
    ("tiers for nobody", WORKER + "limits: {tiers: {a: {}}}\n", "limits.tiers", "without auth"),
    (
        "first token",
        WORKER + "resilience: {timeouts: {first_token: 2h}}\n",
        "resilience.timeouts.first_token",
        "(1h)",
    ),
    (
        "idle",
        WORKER + "resilience: {timeouts: {idle: 2m, total: 1m}}\n",
        "resilience.timeouts.idle",
        "total (1m)",
    ),
    (
        "connect",
        WORKER + "resilience: {timeouts: {connect: 11m}}\n",
        "resilience.timeouts.connect",
        "first_token (10m)",
    ),
    ("rest", WORKER + "resilience: {breaker: {rest: 10m}}\n", "resilience.breaker.rest", "longest_rest (5m)"),
    ("endless drain", WORKER + "drain_timeout: off\n", "drain_timeout", "as long as the longest request"),
]


@pytest.mark.parametrize(
    ("content", "path", "message"), [row[1:] for row in WARNINGS], ids=[row[0] for row in WARNINGS]
)
def test_what_should_not_be_so_is_warned_of(written, tmp_path, content, path, message):
    put_files(tmp_path, "all", "pair", "keys")
    for name in ("all", "pair", "keys"):
        (tmp_path / name).chmod(0o644)
    (tmp_path / "none").write_text("[]")
    (tmp_path / "none").chmod(0o600)
    (tmp_path / "own-keys").write_text(KEYS.replace("tenant: a", "tenant: a, tier: silver"))
    (tmp_path / "own-keys").chmod(0o600)
    for name, more in (("gone-keys", "models: [m, n, gone]"), ("over-keys", "expires: 2020-01-01")):
        (tmp_path / name).write_text(KEYS.replace("tenant: a", f"tenant: a, {more}"))
        (tmp_path / name).chmod(0o600)
    found, problems = read_file(written(content))
    assert found is not None
    (problem,) = problems
    assert (problem.severity, problem.path) == ("warning", path)
    assert message in problem.message
    assert problem.hint
    assert problem.line > 0


@pytest.mark.parametrize(
    "content",
    [
        "workers: {w: {url: 'http://h', key: '${file:own}'}}\n",
        WORKER + "auth: {keys: keys}\n",
        WORKER + OPEN + "trusted_proxies: [10.0.0.0/8]\n",
        WORKER + "front: {keepalive: 20s}\n",
        WORKER + "resilience: {timeouts: {total: 1m}}\n",
        WORKER + "resilience: {timeouts: {total: off, idle: 2h}}\n",
        WORKER + JWT + "limits: {tiers: {a: {}}}\n",
        WORKER + "listen: unix:/run/x.sock\n",
        WORKER + "listen: '[::1]:80'\nadmin: off\n",
    ],
)
def test_what_is_right_is_not_warned_of(written, tmp_path, content):
    put_files(tmp_path, "own", "keys")
    assert problems_of(written(content)) == []


def test_a_secret_in_a_file_that_all_can_read_is_worse(written):
    (problem,) = problems_of(written("workers: {w: {url: 'http://h', key: abc}}\n", mode=0o644))
    assert "everybody on this machine can read" in problem.message


def test_insecure_makes_a_warning_of_it(written):
    path = written(WORKER + "listen: 0.0.0.0:80\nadmin: 0.0.0.0:81\ntrusted_proxies: ['::1']\n")
    assert [problem.path for problem in errors_of(path)] == ["listen", "admin"]
    assert load(path, insecure=True).listen == "0.0.0.0:80"
    assert [problem.path for problem in warnings_of(path, insecure=True)] == ["listen", "admin"]


# --- load ---------------------------------------------------------------------------------------------


def test_assignments_go_over_the_file(written):
    path = written(WORKER + "listen: 0.0.0.0:80\npolicy: nonsense\nresilience: {timeouts: {idle: 2s}}\n")
    found = load(path, ["listen=127.0.0.1:1", "policy=least_conn", "timeouts.connect=5s"])
    assert (found.listen, found.policy) == ("127.0.0.1:1", "least_conn")
    assert (found.resilience.timeouts.idle, found.resilience.timeouts.connect) == (2.0, 5.0)


def test_an_assignment_is_judged_with_the_file(written):
    path = written(WORKER)
    with pytest.raises(SettingError, match=r"relayd.yaml: error: policy: there is no policy 'x'"):
        load(path, ["policy=x"])
    with pytest.raises(SettingError, match="can be reached from other machines"):
        load(path, ["listen=0.0.0.0:80"])
    with pytest.raises(SettingError, match="there is no setting"):
        load(path, ["polcy=x"])


def test_an_assignment_has_no_place_in_the_file(written, monkeypatch):
    monkeypatch.setenv("POLICY", "least_conn")
    path = written(WORKER + "policy: ${POLICY}\n")
    (problem,) = problems_of(path, assignments=["policy=x"])
    assert (problem.line, problem.message) == (0, "there is no policy 'x'")


def test_an_assignment_is_warned_of_as_a_line_is(written):
    (problem,) = problems_of(written(WORKER), assignments=["first_token=2h"])
    assert problem.path == "resilience.timeouts.first_token"


def test_load_names_every_error_and_no_warning(written):
    path = written("policy: x\nmax_body: y\ndrain_timeout: off\n" + WORKER)
    with pytest.raises(SettingError) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith(f"{path}:1:9: error: policy: ")
    assert lines[2].startswith(f"{path}:2:11: error: max_body: ")


def test_load_tells_of_warnings(written):
    lines: list[str] = []
    path = written("drain_timeout: off\n" + WORKER)
    load(path, on_warning=lines.append)
    assert len(lines) == 1
    assert lines[0].startswith(f"{path}:1:16: warning: drain_timeout: ")


# --- examples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["minimal.yaml", "relayd.yaml"])
def test_an_example_is_right_as_it_is(name):
    assert problems_of(str(EXAMPLES / name)) == []


def test_the_full_example_is_right_with_everything_in_it(written, tmp_path, monkeypatch):
    text = re.sub(r"^(\s*)#(\S)", r"\1\2", (EXAMPLES / "relayd.yaml").read_text(), flags=re.MULTILINE)
    monkeypatch.setenv("VENDOR_X_KEY", "sk-1")
    (tmp_path / "tls").mkdir()
    put_files(tmp_path, "tls/relayd.crt", "tls/relayd.key", "tls/workers.crt", "keys.yaml")
    found, problems = read_file(written(text))
    assert [problem.message for problem in problems if problem.path != "workers.vendor-x.headers.x-org"] == []
    assert found.workers["vendor-x"].headers["x-org"].reveal() == "acme"
    assert found.tls.cert


def test_the_full_example_has_every_setting():
    text = (EXAMPLES / "relayd.yaml").read_text()
    names = {path.rsplit(".", 1)[-1].removesuffix("[]") for path, _ in every_key()}
    assert sorted(name for name in names if not re.search(rf"\b{name}:", text)) == []


def test_the_examples_of_the_guide_are_right(written):
    guide = (EXAMPLES.parent / "docs" / "settings-file.md").read_text()
    usual, sockets = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    assert problems_of(written(usual)) == []
    said = {problem.message.partition(": ")[2] for problem in problems_of(written(WORKER + sockets))}
    assert said <= {"there is no such directory now"}  # it is the service's


def test_secrets_are_kinds_of_their_own():
    """The loader masks by what a reader says of itself, so it must say it rightly."""
    for path, hint in every_key():
        written = how_written(hint)
        if "read" in written:
            value_type = entry_type(hint) if "table" in written else hint.__origin__
            assert kind_of(written["read"]).is_secret is (value_type is Secret), path
