"""`hetsched standalone`: the whole product on one machine by one command.

Problem: trying a control plane must not begin with installing a database and a message broker.
Rule: the same processes and the same settings as in production, on embedded defaults: SQLite in the data folder and a
private Valkey on a unix socket. Store, preparation, web, worker, watch, beat start in this order; the address is
printed only after the readiness page is green and a task made the round trip. The data folder outlives the command,
and one command at a time owns it. The command itself holds the port, and its web processes take what comes in there in
turns: while one starts again, whoever connects waits for the next instead of being turned away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from hetsched.contracts.errors import InputError

from . import store
from .output import console, note
from .supervisor import Program, Stopped, Supervisor

SETTINGS = "hetsched.project.settings"
CELERY = (sys.executable, "-m", "celery", "-A", "hetsched.project.celery:app")
# What an embedded server decides itself; left in the environment it would point half of the processes elsewhere.
OWN_VARIABLES = ("DATABASE_URL", "REDIS_URL", "HETSCHED_BROKER_URL", "HETSCHED_CHANNEL_URL")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ANY = ("0.0.0.0", "::")  # noqa: S104  (only compared with)
SLOW_SECONDS = 2.0
STORE_SECONDS, START_SECONDS = 15.0, 90.0


def default_data_dir() -> Path:
    """Return the folder in the user's state directory, or the one HETSCHED_DATA names."""
    if named := os.environ.get("HETSCHED_DATA"):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "hetsched"


Webs = Annotated[int, typer.Option("--web", metavar="N", help="How many web processes.", min=1, max=64)]
Workers = Annotated[
    int, typer.Option("--workers", metavar="N", help="How many workers, of two processes each.", min=1, max=64)
]


def standalone(
    port: Annotated[int, typer.Option(help="Port of the web server; 0 takes a free one.", min=0, max=65535)] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    data: Annotated[Path | None, typer.Option(help="Folder for the database, logs and files.")] = None,
    no_demo: Annotated[bool, typer.Option("--no-demo", help="No demo cluster and no demo workloads.")] = False,
    reset_password: Annotated[bool, typer.Option("--reset-password", help="New administrator password.")] = False,
    webs: Webs = 1,
    workers: Workers = 1,
) -> None:
    """Run web, API, live push, worker, beat and a demo cluster here, without anything installed beforehand."""
    data_dir = (data or default_data_dir()).expanduser().absolute()
    with owned(data_dir) as lock, bound(host, port) as door:
        port = port_of(door)
        lock.write(address(host, port))
        lock.flush()
        socket_file = store.socket_path(data_dir)
        supervisor = Supervisor(
            env=environment(data_dir, host, socket_file, demo=not no_demo),
            cwd=data_dir,
            log_dir=data_dir / "logs",
            tell=note,
        )
        try:
            programs = (*webs_at(door, webs), *workers_called("standalone", workers), watch(), beat())
            where = probe(host, port)
            admin = bring_up(supervisor, socket_file, programs, where, demo=not no_demo, reset=reset_password)
            announce(address(host, port), data_dir, admin)
            supervisor.watch()
        except Stopped:
            pass
        finally:
            note("Stopping …")
            supervisor.stop()
            if socket_file.parent != data_dir:
                shutil.rmtree(socket_file.parent, ignore_errors=True)
    note("Stopped; the data is kept.")


def bring_up(
    supervisor: Supervisor, socket_file: Path, programs: Iterable[Program], where: str, *, demo: bool, reset: bool
) -> dict[str, str] | None:
    """Start everything in order and return the administrator's new credentials, if there are any."""
    note("hetsched is starting")
    supervisor.start(store.program(socket_file))
    supervisor.wait_until(lambda: store.answers(socket_file), what="the message store", timeout_seconds=STORE_SECONDS)

    wishes = ["--static", "--admin", *(["--demo"] if demo else []), *(["--reset-admin"] if reset else [])]
    prepare = Program("prepare", (sys.executable, "-m", "django", "prepare", *wishes))
    admin = admin_of(supervisor.run_to_end(prepare))

    for program in programs:
        supervisor.start(program)
    with step("web, worker and beat"):
        supervisor.wait_until(lambda: is_ready(where), what="the web server", timeout_seconds=START_SECONDS)
        round_trip = RoundTrip(socket_file)
        supervisor.wait_until(round_trip.done, what="the worker", timeout_seconds=START_SECONDS)
    return admin


def admin_of(said: bytes) -> dict[str, str] | None:
    """Return the administrator's new credentials that a preparation printed, if there are any."""
    found: dict[str, str] | None = json.loads(said)["admin"]
    return found


def webs_at(door: socket.socket, count: int) -> list[Program]:
    """Return web servers at one door: HTTP and WebSockets, small frames, no compression to bomb."""
    where = ("--fd", str(door.fileno()), "--lifespan", "off", "--no-access-log", "--no-server-header")
    sockets = ("--ws", "websockets-sansio", "--ws-max-size", "65536", "--ws-per-message-deflate", "false")
    # Longer than pauses of a client that comes again: who reuses a connection that is just closed gets no answer.
    end = ("--timeout-keep-alive", "30", "--timeout-graceful-shutdown", "3")
    argv = (sys.executable, "-m", "uvicorn", "hetsched.project.asgi:application", *where, *sockets, *end)
    return [Program(name, argv, fds=(door.fileno(),)) for name in numbered("web", count)]


def workers_called(name: str, count: int) -> list[Program]:
    """Return workers for all queues, two processes each; those of one message store need different names."""
    pool = ("-P", "prefork", "-c", "2", "-Q", "schedule,io,discover")
    quiet = ("--without-gossip", "--without-mingle")
    return [
        Program(program, (*CELERY, "worker", *pool, "-n", f"{one}@localhost", *quiet), grace_seconds=10.0)
        for program, one in zip(numbered("worker", count), numbered(name, count), strict=True)
    ]


def numbered(name: str, count: int) -> list[str]:
    """Return so many names: the first is the name itself."""
    return [name, *(f"{name}-{number}" for number in range(2, count + 1))]


def watch() -> Program:
    """Return the follower of live clusters; without any it only looks for one now and then."""
    return Program("watch", (sys.executable, "-m", "django", "watch"), grace_seconds=10.0)


def beat() -> Program:
    return Program("beat", (*CELERY, "beat", "--pidfile="))


@contextlib.contextmanager
def owned(data_dir: Path) -> Iterator[IO[str]]:
    """Make the data folder and hold it; yield the lock file, which tells others where this server is.

    Raises: InputError `DataDirInvalid`, `AlreadyRunning`.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data_dir / "logs").mkdir(exist_ok=True)
        lock = (data_dir / "lock").open("a+")
    except OSError as error:
        hint = "Name a folder of your own with --data"
        raise InputError("DataDirInvalid", f"{error.strerror or error}", place=str(data_dir), hint=hint) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            message = f"a server already runs on this data: {lock.read().strip()}"
            hint = "Stop it first, or choose another folder with --data"
            raise InputError("AlreadyRunning", message, place=str(data_dir), hint=hint) from None
        lock.truncate(0)
        yield lock
        lock.truncate(0)


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """Hold the port to listen on, a free one for 0, for the processes that will.

    Raises: InputError `PortBusy`, `HostInvalid`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What is accepted here inherits it: short answers leave at once.
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            door.bind((host, port))
        except socket.gaierror:
            raise InputError("HostInvalid", f"{host!r} is no address of this machine", place="--host") from None
        except OSError as error:
            hint = "Choose another with --port, or 0 for a free one"
            raise InputError("PortBusy", f"{host}:{port}: {error.strerror}", place="--port", hint=hint) from None
        yield door


def port_of(door: socket.socket) -> int:
    """Return the port that is held."""
    return int(door.getsockname()[1])


def free_port(host: str, port: int) -> int:
    """Return a port that nobody holds, a free one for 0. Raises: InputError, as `bound` does."""
    with bound(host, port) as door:
        return port_of(door)


def address(host: str, port: int) -> str:
    """Return the URL of the first page."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def environment(data_dir: Path, host: str, socket_file: Path, *, demo: bool) -> dict[str, str]:
    """Return the environment that every process shares."""
    env = dict(os.environ)
    for name in (*OWN_VARIABLES, *(f"{name}_FILE" for name in OWN_VARIABLES)):
        if env.pop(name, None):
            note(f"{name} is set and not used: a standalone server keeps its own")
    env["REDIS_URL"] = f"unix://{socket_file}"
    env["HETSCHED_DEMO"] = "1" if demo else "0"
    give_key(env, data_dir)
    return env | common(env, data_dir, host)


def common(env: Mapping[str, str], data_dir: Path, host: str) -> dict[str, str]:
    """Return the variables that the processes of every supervisor have in common."""
    return {
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "HETSCHED_DATA": str(data_dir),
        "ALLOWED_HOSTS": env.get("ALLOWED_HOSTS") or ",".join(dict.fromkeys((*LOOPBACK, host, socket.gethostname()))),
        "PYTHONUNBUFFERED": "1",
    }


def give_key(env: dict[str, str], data_dir: Path) -> None:
    """Have a secret key in the environment: the one that is there, else the one of the data folder."""
    if not (env.get("SECRET_KEY_FILE") or env.get("SECRET_KEY")):
        env["SECRET_KEY"] = secret_key(data_dir)


def secret_key(data_dir: Path) -> str:
    """Return the key kept in the data folder, made at the first start, whole, and readable by its owner only."""
    path = data_dir / "secret-key"
    if not path.exists():
        descriptor, unfinished = tempfile.mkstemp(dir=data_dir, prefix="secret-key.")
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48))
        os.replace(unfinished, path)
    return path.read_text().strip()


def probe(host: str, port: int) -> str:
    """Return the URL of the readiness page, as this machine reaches it."""
    return f"{address('127.0.0.1' if host in ANY else host, port)}readyz"


def is_ready(url: str) -> bool:
    """Say whether the readiness page answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  (our own address)
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class RoundTrip:
    """One task on its way through broker and worker and back."""

    def __init__(self, socket_file: Path) -> None:
        from celery import Celery

        url = f"redis+socket://{socket_file}"
        self._result: Any = Celery(broker=url, backend=url).send_task("hetsched.ping", queue="schedule")

    def done(self) -> bool:
        return bool(self._result.ready())


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Say which step runs, and how long it took where a person would have wondered."""
    note(f"  {title} …")
    started = time.monotonic()
    yield
    seconds = time.monotonic() - started
    if seconds > SLOW_SECONDS:
        note(f"  {title}: done in {seconds:.0f} s")


def announce(url: str, data_dir: Path, admin: dict[str, str] | None) -> None:
    """Print where it is and how to get in."""
    out = console()
    out.print(f"\nhetsched is ready at [bold]{url}[/]")
    if admin:
        out.print(f"  log in as   [bold]{admin['username']}[/]")
        out.print(f"  password    [bold]{admin['password']}[/]   shown only now")
        out.print(f"  change it   {url}admin/password_change/")
    else:
        out.print("  log in with the password of the first start; lost it? start with --reset-password")
    out.print(f"  data        {data_dir}")
    out.print("  stop        Ctrl-C\n")
    sys.stdout.flush()
