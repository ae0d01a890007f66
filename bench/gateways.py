"""The columns of the table: how each gateway is found, configured and started.

A gateway that cannot take part raises Unavailable with the reason, which becomes its column.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.faults import BenchFault, Unavailable
from bench.machine import Cores
from bench.processes import Child, family_of, free_port
from bench.toolchain import CACHE, ROOT, native
from bench.wire import ISSUER, SECRET, Address

OPEN_FILES = 16384
NGINX_PLACES = "/usr/sbin:/usr/local/sbin:/usr/local/nginx/sbin:/opt/homebrew/bin"
NGINX_PACKAGES = ("nginx", "nginx-light", "nginx-core")  # which of them holds the program varies by release


@dataclass
class Gateway:
    """A gateway that answers.  `child` is None when someone else started it, `pid` when nobody named it.

    `admin` is where a relayd says how it goes, if it does.
    """

    name: str
    address: Address
    child: Child | None = None
    pid: int | None = None
    admin: Address | None = None

    def pids(self) -> list[int]:
        return family_of(self.pid) if self.pid else []

    def stop(self) -> None:
        if self.child:
            self.child.stop()


class Upstream:
    """The native upstream, listening on a free port of the loopback interface."""

    def __init__(self, folder: Path, core: int | None) -> None:
        self.child = Child(
            [str(native("upstream")), "--listen", "127.0.0.1:0"], core, folder / "upstream.log"
        )
        try:
            self.child.await_ready(lambda: "listening on" in self.child.log.read_text())
        except BaseException:
            self.child.stop()
            raise
        port = self.child.log.read_text().rpartition(":")[2]
        self.address = Address("127.0.0.1", int(port))


def _models(address: Address, key: str | None) -> tuple[int, bytes] | None:
    """Status and body of GET /v1/models; None when it is not answered."""
    link = http.client.HTTPConnection(address.host, address.port, timeout=2)
    try:
        link.request(
            "GET", f"{address.prefix}/models", headers={"authorization": f"Bearer {key}"} if key else {}
        )
        answer = link.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        link.close()


def answers(address: Address) -> bool:
    """Whether GET /v1/models is answered: with 200, or with the wish for a credential."""
    answer = _models(address, None)
    return answer is not None and answer[0] in (200, 401)


# ---- what is started, by name ----

Command = Callable[[Address, Address, Path], list[str]]


def nginx_command(listen: Address, worker: Address, folder: Path) -> list[str]:
    """Writes the configuration and returns how to start nginx with it."""
    folder = folder / f"nginx-{listen.port}"
    folder.mkdir()
    template = string.Template((Path(__file__).parent / "rivals" / "nginx.conf").read_text())
    config = template.substitute(
        folder=folder,
        listen=listen.authority,
        worker=worker.authority,
        open_files=OPEN_FILES,
        user="user root;" if os.geteuid() == 0 else "",  # its own folder must stay writable to it
    )
    (folder / "nginx.conf").write_text(config)
    return [
        find_nginx(),
        "-p",
        str(folder),
        "-e",
        str(folder / "error.log"),
        "-c",
        str(folder / "nginx.conf"),
    ]


def aiohttp_command(listen: Address, worker: Address, folder: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "bench.rivals.plain_aiohttp",
        "--worker",
        worker.url,
        "--listen",
        listen.authority,
    ]


def relayd_command(listen: Address, worker: Address, folder: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "relayd",
        "serve",
        "--worker",
        worker.url,
        "--listen",
        listen.authority,
        "--admin",
        "off",
    ]


def guarded_command(listen: Address, worker: Address, folder: Path) -> list[str]:
    """relayd with everything on that says no and writes down: tokens, keys, limits, metrics, a log."""
    folder = folder / f"guarded-{listen.port}"
    folder.mkdir()
    template = string.Template((Path(__file__).parent / "guarded.yaml").read_text())
    (folder / "keys.yaml").write_text(f"- {{sha256: {'0' * 64}, tenant: somebody}}\n")
    (folder / "keys.yaml").chmod(0o600)
    settings = folder / "relayd.yaml"
    settings.write_text(
        template.substitute(
            listen=listen.authority, worker=worker.url, folder=folder, secret=SECRET, issuer=ISSUER
        )
    )
    settings.chmod(0o600)
    return [sys.executable, "-m", "relayd", "serve", "--config", str(settings)]


COMMANDS: dict[str, Command] = {
    "nginx": nginx_command,
    "aiohttp": aiohttp_command,
    "relayd": relayd_command,
    "guarded": guarded_command,
}


def start(name: str, worker: Address, folder: Path, cores: Cores) -> Gateway:
    """Starts gateway `name` in front of `worker`.  Raises Unavailable when it does not come up."""
    reason = Unavailable("no free port was found")
    for _ in range(3):  # someone else may take the port between its choice and its use
        listen = Address("127.0.0.1", free_port())
        command = COMMANDS[name](listen, worker, folder)
        child = Child(command, cores.gateway, folder / f"{name}-{listen.port}.log", cwd=ROOT)
        try:
            child.await_ready(lambda listen=listen: answers(listen))
        except Unavailable as fault:
            child.stop()
            reason = fault
            if "in use" not in str(fault):
                break
        except BaseException:
            child.stop()
            raise
        else:
            return Gateway(name, listen, child, child.pid, admin_of(child.log.read_text()))
    raise reason


def admin_of(said: str) -> Address | None:
    """Returns the admin address that a gateway has named in its log, None where it has none."""
    found = re.search(r"admin on http://127\.0\.0\.1:(\d+)", said)
    return Address("127.0.0.1", int(found[1])) if found else None


def version(name: str) -> str:
    """What a reader needs to know about the gateway's build."""
    if name == "nginx":
        done = subprocess.run([find_nginx(), "-v"], capture_output=True, text=True)
        found = re.search(r"nginx/(\S+)", done.stderr)
        return found[1] if found else "unknown"
    if name == "aiohttp":
        return ", ".join(f"{package} {_installed(package)}" for package in ("aiohttp", "uvloop"))
    if name == "relayd":
        from relayd import __version__

        return __version__
    return ""


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable(f"the Python package {package} is not installed") from None


# ---- nginx, wherever it is ----


def find_nginx() -> str:
    """Returns the path of nginx: installed, or unpacked from Debian's package, by this run if need be."""
    unpacked = CACHE / "nginx" / "usr" / "sbin" / "nginx"
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{NGINX_PLACES}:{unpacked.parent}")
    if found:
        return found
    if not shutil.which("apt-get"):
        raise Unavailable("nginx is not installed")
    _unpack_nginx(CACHE / "nginx")
    if not unpacked.exists():
        raise Unavailable(
            "nginx is not installed, and apt-get could not fetch it: try apt-get install nginx-light"
        )
    return str(unpacked)


def _unpack_nginx(folder: Path) -> None:
    """Unpacks Debian's package beside the other build results.

    It is not installed: that would start a web server on port 80 of the machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    print("bench: nginx is not installed; fetching Debian's package into build/bench/nginx", file=sys.stderr)
    if not _download_packages(folder) and os.geteuid() == 0:
        _quiet(["apt-get", "update"], folder)
        _download_packages(folder)
    for package in folder.glob("*.deb"):
        _quiet(["dpkg", "-x", str(package), str(folder)], folder)


def _download_packages(folder: Path) -> bool:
    done = [_quiet(["apt-get", "download", package], folder) for package in NGINX_PACKAGES]
    return any(done)


def _quiet(command: list[str], folder: Path) -> bool:
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def running(address: Address, pid: int | None, name: str = "target") -> Gateway:
    """A gateway that someone else started.  Raises BenchFault when it does not answer or `pid` is gone."""
    if pid is not None and not Path(f"/proc/{pid}").exists():
        raise BenchFault(f"there is no process {pid}: --pid takes the id of the gateway", 2)
    if _models(address, None) is None:
        raise BenchFault(f"nothing that speaks HTTP answers on {address.url}: is a gateway listening there?")
    return Gateway(name, address, None, pid)


def first_model(address: Address, key: str | None) -> str:
    """The first model that the gateway lists.  Raises BenchFault when it lists none."""
    status, body = _models(address, key) or (0, b"")
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise BenchFault(
            f"GET {address.url}{address.prefix}/models ({status}) lists no model: name one with --model"
        ) from None
