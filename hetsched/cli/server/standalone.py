"""`hetsched standalone`: run the whole product on one machine with one command.

Users must be able to try the control plane without installing a database and a message broker. The command runs the
same processes with the same settings as in production, with embedded services: SQLite in the data folder and a private
Valkey on a unix socket. Store, preparation, web, workers, informer and beat start in this order. The address is printed
after the readiness page responds with 200 and a task has passed through broker and worker. The data folder is kept
after the command ends and is locked while it runs. The command itself binds the port, and its web processes accept
connections from the same socket: while one of them restarts, new connections wait for another process instead of being
refused. Each web process also has a probe socket and is restarted if it does not respond to `/livez` for half a minute.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import msgspec
import typer
from rich.markup import escape

from hetsched.contracts.errors import InputError

from ..output import console, note
from . import store
from .forked import PythonModule
from .probe import Probe
from .supervisor import StopRequested, SupervisedProgram, Supervisor

SETTINGS = "hetsched.project.settings"
COMMANDS = "hetsched.project.management.commands"
# Modules that a worker needs in addition to the tasks, and that a web process needs. The program's own module is not
# among them, because it runs as `__main__`.
WORKER_MODULES = (
    "billiard.popen_fork", "billiard.sharedctypes", "celery.app.control", "celery.app.log", "celery.apps.worker",
    "celery.backends.redis", "celery.bin.celery", "celery.concurrency.prefork", "celery.fixups.django",
    "celery.worker.components", "celery.worker.consumer", "kombu.transport.redis",
)  # fmt: skip
WEB_MODULES = ("hetsched.project.asgi", "hetsched.project.connections")
# Variables that an embedded server sets itself, because inherited values would connect some processes to other
# services.
OWN_VARIABLES = ("DATABASE_URL", "REDIS_URL", "HETSCHED_BROKER_URL", "HETSCHED_CHANNEL_URL")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ANY = ("0.0.0.0", "::")  # noqa: S104  (only compared with)
SLOW_SECONDS = 2.0
STORE_SECONDS, START_SECONDS = 15.0, 90.0


def default_data_dir() -> Path:
    """Return the folder from HETSCHED_DATA, or by default a folder in the user's state directory."""
    if named := os.environ.get("HETSCHED_DATA"):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "hetsched"


Webs = Annotated[int, typer.Option("--web", metavar="N", help="Number of web processes.", min=1, max=64)]
Workers = Annotated[
    int, typer.Option("--workers", metavar="N", help="Number of workers; each has two processes.", min=1, max=64)
]


def standalone(
    port: Annotated[int, typer.Option(help="Port of the web server; 0 selects a free port.", min=0, max=65535)] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    data: Annotated[Path | None, typer.Option(help="Folder for the database, logs and files.")] = None,
    no_demo: Annotated[bool, typer.Option("--no-demo", help="Run without the demo cluster.")] = False,
    reset_password: Annotated[bool, typer.Option("--reset-password", help="Set a new administrator password.")] = False,
    webs: Webs = 1,
    workers: Workers = 1,
) -> None:
    """Run all processes and a demo cluster on this machine; no other software is needed."""
    data_dir = (data or default_data_dir()).expanduser().absolute()
    with lock_data_dir(data_dir) as lock, bind_port(host, port) as listener:
        port = port_of(listener)
        lock.write(address(host, port))
        lock.flush()
        socket_file = store.socket_path(data_dir)
        supervisor = Supervisor(
            env=environment(data_dir, host, socket_file, demo=not no_demo),
            cwd=data_dir,
            log_dir=data_dir / "logs",
            write_line=note,
        )
        try:
            tasks = worker_programs("standalone", workers, socket_file)
            programs = (*web_programs(listener, webs), *tasks, watch(), beat())
            where = readiness_url(host, port)
            admin = start_all(supervisor, socket_file, programs, where, demo=not no_demo, reset=reset_password)
            print_address(address(host, port), data_dir, admin)
            supervisor.watch()
        except StopRequested:
            pass
        finally:
            note("Stopping …")
            supervisor.stop()
            if socket_file.parent != data_dir:
                shutil.rmtree(socket_file.parent, ignore_errors=True)
    note("Stopped. Data is kept.")


def start_all(
    supervisor: Supervisor,
    socket_file: Path,
    programs: Sequence[SupervisedProgram],
    where: str,
    *,
    demo: bool,
    reset: bool,
) -> dict[str, str] | None:
    """Start all programs in order and return the administrator's new credentials, if any."""
    note("hetsched is starting")
    supervisor.start(store.program(socket_file))
    supervisor.wait_until(lambda: store.answers(socket_file), what="the message store", timeout_seconds=STORE_SECONDS)

    wishes = ["--static", "--admin", *(["--demo"] if demo else []), *(["--reset-admin"] if reset else [])]
    admin = prepare(supervisor, programs, *wishes).admin

    for program in programs:
        supervisor.start(program)
    with step("web, worker and beat"):
        web = f"{where}?component=web"
        supervisor.wait_until(lambda: is_ready(web), what="the web server", timeout_seconds=START_SECONDS)
        round_trip = RoundTrip(socket_file)
        supervisor.wait_until(round_trip.done, what="the worker", timeout_seconds=START_SECONDS)
        supervisor.wait_until(lambda: is_ready(where), what="the scheduling queue", timeout_seconds=START_SECONDS)
    return admin


class Prepared(msgspec.Struct, frozen=True):
    """Output of the `prepare` command: the administrator's new credentials, and whether a live cluster is connected."""

    admin: dict[str, str] | None = None
    live: bool = False


def prepare(supervisor: Supervisor, upcoming: Iterable[SupervisedProgram], *options: str) -> Prepared:
    """Run the `prepare` command with these options, and meanwhile load the code of `upcoming` programs."""
    program = SupervisedProgram("prepare", django_command("prepare", *options))
    return msgspec.json.decode(supervisor.run_to_end(program, upcoming), type=Prepared)


def web_programs(listener: socket.socket, count: int) -> list[SupervisedProgram]:
    """Return web processes that share one listening socket, each with a separate probe."""
    found = []
    for name in numbered("web", count):
        probe = Probe()
        where = ("--fd", str(listener.fileno()), "--probe-fd", str(probe.descriptor), "--grace-seconds", "3")
        module = PythonModule("hetsched.project.web_server", where, partial(load, *WEB_MODULES))
        found.append(SupervisedProgram(name, module, fds=(listener.fileno(), probe.descriptor), probe=probe))
    return found


def worker_programs(name: str, count: int, socket_file: Path | None) -> list[SupervisedProgram]:
    """Return workers with two processes each, and one worker for previews, which would otherwise delay decisions.

    The names of the workers of one message store must differ. Previews are rare, so their worker runs on demand if the
    message store is the embedded one, on `socket_file`: it saves about 250 MiB.
    """
    workers = [
        _worker(program, one, "schedule,io,discover", 2)
        for program, one in zip(numbered("worker", count), numbered(name, count), strict=True)
    ]
    preview = _worker("preview", f"{name}-preview", "preview", 1)
    if socket_file is not None:
        preview = msgspec.structs.replace(preview, demand=lambda: store.has_messages(socket_file, "preview"))
    return [*workers, preview]


def _worker(program: str, name: str, queues: str, processes: int) -> SupervisedProgram:
    pool = ("-P", "prefork", "-c", str(processes), "-Q", queues)
    quiet = ("--without-gossip", "--without-mingle")
    words = ("-A", "hetsched.project.celery:app", "worker", *pool, "-n", f"{name}@localhost", *quiet)
    return SupervisedProgram(program, PythonModule("celery", words, _load_worker), grace_seconds=10.0)


def django_command(*words: str) -> PythonModule:
    """Return the module that runs a management command."""
    return PythonModule("django", words, partial(load, f"{COMMANDS}.{words[0]}"))


def load(*modules: str) -> None:
    """Set up Django and import the modules in this process, before it forks a program.

    Raises: SystemExit if the environment is invalid, after a message.
    """
    import django

    django.setup()
    for module in modules:
        importlib.import_module(module)


def _load_watch() -> None:
    from hetsched.engine.framework.registry import load_registry

    load(f"{COMMANDS}.watch")
    load_registry()


def _load_worker() -> None:
    from django.conf import settings

    from hetsched.engine.framework.registry import load_registry

    load(*WORKER_MODULES, *settings.CELERY_IMPORTS)
    load_registry()


def numbered(name: str, count: int) -> list[str]:
    """Return `count` names, of which the first is `name` itself and the others are numbered."""
    return [name, *(f"{name}-{number}" for number in range(2, count + 1))]


def watch() -> SupervisedProgram:
    """Return the program of the informers. Without live clusters, it only polls for new clusters."""
    return SupervisedProgram("watch", PythonModule("django", ("watch",), _load_watch), grace_seconds=10.0)


def beat() -> SupervisedProgram:
    return SupervisedProgram("beat", PythonModule("hetsched.project.beat", (), partial(load, "celery.apps.beat")))


@contextlib.contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[IO[str]]:
    """Create and lock the data folder; yield the lock file, to which the address of this server is written.

    Raises: InputError `DataDirInvalid`, `AlreadyRunning`; ModuleNotFoundError if the server is not installed.
    """
    importlib.import_module("django")  # fail before a folder is created, and not in each of the processes
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data_dir / "logs").mkdir(exist_ok=True)
        lock = (data_dir / "lock").open("a+")
    except OSError as error:
        hint = "Use a writable folder with --data"
        raise InputError("DataDirInvalid", f"{error.strerror or error}", place=str(data_dir), hint=hint) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            message = f"a server already uses this data folder: {lock.read().strip()}"
            hint = "Stop that server, or use another folder with --data"
            raise InputError("AlreadyRunning", message, place=str(data_dir), hint=hint) from None
        lock.truncate(0)
        yield lock
        lock.truncate(0)


@contextlib.contextmanager
def bind_port(host: str, port: int) -> Iterator[socket.socket]:
    """Bind the listening port for the web processes; port 0 selects a free port.

    Raises: InputError `PortBusy`, `HostInvalid`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Send short responses immediately; accepted connections inherit TCP_NODELAY.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((host, port))
        except socket.gaierror:
            raise InputError("HostInvalid", f"{host!r} is not an address of this machine", place="--host") from None
        except OSError as error:
            hint = "Use another --port, or 0 for a free port"
            raise InputError("PortBusy", f"{host}:{port}: {error.strerror}", place="--port", hint=hint) from None
        yield listener


def port_of(listener: socket.socket) -> int:
    """Return the bound port."""
    return int(listener.getsockname()[1])


def free_port(host: str, port: int) -> int:
    """Return `port` if it is free, or any free port if `port` is 0. Raises: the errors of `bind_port`."""
    with bind_port(host, port) as listener:
        return port_of(listener)


def address(host: str, port: int) -> str:
    """Return the URL of the first page."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def environment(data_dir: Path, host: str, socket_file: Path, *, demo: bool) -> dict[str, str]:
    """Return the environment that all processes share."""
    env = dict(os.environ)
    for name in (*OWN_VARIABLES, *(f"{name}_FILE" for name in OWN_VARIABLES)):
        if env.pop(name, None):
            note(f"{name} is ignored: a standalone server uses its own value")
    env["REDIS_URL"] = f"unix://{socket_file}"
    env["HETSCHED_DEMO"] = "1" if demo else "0"
    set_secret_key(env, data_dir)
    return env | common_environment(env, data_dir, host)


def common_environment(env: Mapping[str, str], data_dir: Path, host: str) -> dict[str, str]:
    """Return the environment variables that all supervisors set for their processes."""
    return {
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "HETSCHED_DATA": str(data_dir),
        "ALLOWED_HOSTS": env.get("ALLOWED_HOSTS") or ",".join(dict.fromkeys((*LOOPBACK, host, socket.gethostname()))),
        "PYTHONUNBUFFERED": "1",
        "OPENBLAS_NUM_THREADS": env.get("OPENBLAS_NUM_THREADS") or "1",  # numpy would start threads at its import
    }


def set_secret_key(env: dict[str, str], data_dir: Path) -> None:
    """Set the secret key in the environment to the key of the data folder, unless it is already set."""
    if not (env.get("SECRET_KEY_FILE") or env.get("SECRET_KEY")):
        env["SECRET_KEY"] = secret_key(data_dir)


def secret_key(data_dir: Path) -> str:
    """Return the key in the data folder; it is created atomically at the first start, readable only by its owner."""
    path = data_dir / "secret-key"
    if not path.exists():
        descriptor, unfinished = tempfile.mkstemp(dir=data_dir, prefix="secret-key.")
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48))
        os.replace(unfinished, path)
    return path.read_text().strip()


def readiness_url(host: str, port: int) -> str:
    """Return the URL of the readiness page for requests from this machine."""
    return f"{address('127.0.0.1' if host in ANY else host, port)}readyz"


def is_ready(url: str) -> bool:
    """Return whether the readiness page responds with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  (our own address)
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class RoundTrip:
    """One task that passes through broker and worker, to check both.

    Programs that are forked later would inherit an application of Celery and its connections, so neither remains.
    """

    def __init__(self, socket_file: Path) -> None:
        from celery import Celery

        self._socket_file = socket_file
        app = Celery(broker=f"redis+socket://{socket_file}", fixups=[], set_as_current=False)
        with app.connection_for_write() as connection:
            self._task_id = app.send_task("hetsched.ping", queue="schedule", connection=connection).id

    def done(self) -> bool:
        return store.has_result(self._socket_file, self._task_id)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Print the current step, and its duration if it takes more than `SLOW_SECONDS`."""
    note(f"  {title} …")
    started = time.monotonic()
    yield
    seconds = time.monotonic() - started
    if seconds > SLOW_SECONDS:
        note(f"  {title}: done in {seconds:.0f} s")


def print_address(url: str, data_dir: Path, admin: dict[str, str] | None) -> None:
    """Print the address and the first credentials, in one write: a reader of the output sees all of it or nothing."""
    lines = ["", f"hetsched is ready at [bold]{url}[/]"]
    if admin:
        lines += [
            f"  log in as   [bold]{admin['username']}[/]",
            f"  password    [bold]{admin['password']}[/]   shown only once",
            f"  change it   {url}admin/password_change/",
        ]
    else:
        lines.append("  log in with the password of the first start; use --reset-password to set a new one")
    lines += [f"  data        {escape(str(data_dir))}", "  stop        Ctrl-C", ""]
    console().print("\n".join(lines))
    sys.stdout.flush()
