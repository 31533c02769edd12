"""`hetsched scheduler`: run the Kubernetes scheduler with all its processes.

The processes are informer, worker and beat, the console unless disabled, and the extender if enabled. They use the
database and message store in DATABASE_URL and REDIS_URL, or by default a SQLite file and a private store in the data
folder. The informer process decides and binds pods; workers write events and projections in the background. If the
options name a cluster, it is connected first. Clusters that are already connected are also scheduled. If a live cluster
is connected, workers and beat have a lower processor priority, and they start when the pods that are pending at the
start are scheduled, because their start and first tasks take processor time from the informer process. Without a live
cluster, the workers are the scheduler.
Any number of these commands may use one database: for each cluster, database leases select the command that runs the
informer and the one that schedules, and the others are on standby.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hetsched.contracts.errors import InputError

from ..options import read_kubeconfig
from ..output import console, note
from . import standalone, store
from .supervisor import StopRequested, SupervisedProgram, Supervisor

FIRST_BACKLOG_SECONDS = 15.0  # longest time for which background processes wait for the backlog at the start
IDLE_FILE = Path("pulse", "watch-idle")  # `journal.heartbeat.WATCH_IDLE`; this command does not load Django
_DATABASE = ("DATABASE_URL", "DATABASE_URL_FILE")
_STORE = ("REDIS_URL", "REDIS_URL_FILE", "HETSCHED_BROKER_URL", "HETSCHED_BROKER_URL_FILE")


def scheduler(
    name: Annotated[str, typer.Option(help="Name of the cluster to connect.")] = "kubernetes",
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Kubeconfig of the cluster; credentials must be inline.")
    ] = None,
    context: Annotated[str, typer.Option(help="Context of the kubeconfig; default: its current context.")] = "",
    in_cluster: Annotated[
        bool, typer.Option("--in-cluster", help="Schedule the pods of the cluster in which this process runs.")
    ] = False,
    namespace: Annotated[
        list[str] | None, typer.Option(help="Namespace that submissions may use; can be repeated.", show_default=False)
    ] = None,
    shadow: Annotated[
        str,
        typer.Option(
            "--shadow",
            metavar="SCHEDULER",
            help="Shadow mode: compare decisions with those of this scheduler, and write nothing to the cluster.",
        ),
    ] = "",
    no_shadow: Annotated[bool, typer.Option("--no-shadow", help="Leave shadow mode.")] = False,
    no_web: Annotated[bool, typer.Option("--no-web", help="Run without console and API.")] = False,
    no_admin: Annotated[
        bool, typer.Option("--no-admin", help="Create no administrator, whose password would be printed.")
    ] = False,
    log_stderr: Annotated[
        bool, typer.Option("--log-stderr", help="Write the logs of all processes to standard error, not to files.")
    ] = False,
    extender: Annotated[
        bool,
        typer.Option(
            "--extender", help="Also serve the kube-scheduler extender, configured by HETSCHED_EXTENDER_*; see `certs`."
        ),
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the web server; 0 selects a free port.", min=0, max=65535)] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    data: Annotated[Path | None, typer.Option(help="Folder for logs and, without DATABASE_URL, for data.")] = None,
    webs: standalone.Webs = 1,
    workers: standalone.Workers = 1,
) -> None:
    """Run the scheduler for Kubernetes clusters. Instances on one database elect a leader for each cluster."""
    if kubeconfig is not None:
        kubeconfig = kubeconfig.expanduser().absolute()
        read_kubeconfig(kubeconfig, context)  # report errors in the kubeconfig before any process starts
    elif context or ((namespace or shadow or no_shadow) and not in_cluster):
        option = next(
            option
            for option, value in (("--context", context), ("--namespace", namespace), ("--shadow", shadow or no_shadow))
            if value
        )
        hint = "Add --kubeconfig FILE or --in-cluster"
        raise InputError("ConnectionUnclear", "no cluster is connected", place=option, hint=hint)
    if shadow and no_shadow:
        raise InputError("ConnectionUnclear", "--shadow and --no-shadow cannot be combined", place="--shadow")
    data_dir = (data or standalone.default_data_dir()).expanduser().absolute()
    if extender:
        check_extender(data_dir)
    with standalone.lock_data_dir(data_dir) as lock, contextlib.ExitStack() as held:
        servers: list[SupervisedProgram] = []
        if not no_web:
            listener = held.enter_context(standalone.bind_port(host, port))
            port = standalone.port_of(listener)
            servers = standalone.web_programs(listener, webs)
        where = f"process {os.getpid()}" if no_web else standalone.address(host, port)
        lock.write(where)
        lock.flush()
        socket_file = None if _is_any_set(*_STORE) else store.socket_path(data_dir)
        supervisor = Supervisor(
            env=environment(data_dir, host, socket_file),
            cwd=data_dir,
            log_dir=data_dir / "logs",
            write_line=note,
            log_stderr=log_stderr,
        )
        cluster = connection(
            name, kubeconfig, context, in_cluster, namespace or [], "" if no_shadow else shadow or None
        )
        try:
            web = None if no_web else (host, port)
            tasks = standalone.worker_programs(f"scheduler-{os.getpid()}", workers, socket_file)
            start_all(supervisor, socket_file, cluster, web, servers, tasks, extender=extender, admin=not no_admin)
            supervisor.watch()
        except StopRequested:
            pass
        finally:
            note("Stopping …")
            supervisor.stop()
            if socket_file is not None and socket_file.parent != data_dir:
                shutil.rmtree(socket_file.parent, ignore_errors=True)
    note("Stopped. Leases are released, data is kept.")


def start_all(
    supervisor: Supervisor,
    socket_file: Path | None,
    cluster: SupervisedProgram | None,
    web: tuple[str, int] | None,
    servers: Sequence[SupervisedProgram],
    workers: Sequence[SupervisedProgram],
    *,
    extender: bool,
    admin: bool,
) -> None:
    """Start all processes in order; print the address once they are ready."""
    note("hetsched scheduler is starting")
    if socket_file is not None:
        supervisor.start(store.program(socket_file))
        supervisor.wait_until(
            lambda: store.answers(socket_file), what="the message store", timeout_seconds=standalone.STORE_SECONDS
        )
    wishes = ("--static", *(["--admin"] if admin else [])) if web else ()
    watch, beat = standalone.watch(), standalone.beat()
    prepared = standalone.prepare(supervisor, (watch, *workers, beat, *servers), *wishes)
    if cluster is not None:
        supervisor.run_to_end(cluster)
    idle = supervisor.log_dir.parent / IDLE_FILE
    idle.unlink(missing_ok=True)
    others = [SupervisedProgram("extender", standalone.django_command("extender"))] if extender else []
    for program in (watch, *servers, *others):
        supervisor.start(program)
    is_live = cluster is not None or prepared.live
    if is_live:
        latest = time.monotonic() + FIRST_BACKLOG_SECONDS
        with standalone.step("pending pods"):
            supervisor.watch_until(lambda: idle.exists() or time.monotonic() > latest)
    for program in (*workers, beat):
        supervisor.start(msgspec.structs.replace(program, background=is_live))
    with standalone.step("the processes"):
        if web:
            supervisor.wait_until(
                lambda: standalone.is_ready(f"{standalone.readiness_url(*web)}?component=web"),
                what="the web server",
                timeout_seconds=standalone.START_SECONDS,
            )
        if socket_file is not None:
            round_trip = standalone.RoundTrip(socket_file)
            supervisor.wait_until(round_trip.done, what="the worker", timeout_seconds=standalone.START_SECONDS)
            if web:
                supervisor.wait_until(
                    lambda: standalone.is_ready(standalone.readiness_url(*web)),
                    what="the scheduling queue",
                    timeout_seconds=standalone.START_SECONDS,
                )
    if web and admin:
        standalone.print_address(standalone.address(*web), supervisor.log_dir.parent, prepared.admin)
    else:
        console().print(f"\nhetsched scheduler is running\n  data        {supervisor.log_dir.parent}\n")
        sys.stdout.flush()


def check_extender(data_dir: Path) -> None:
    """Reject an extender without allowed clients or certificates.

    Raises: InputError `ExtenderClientsMissing` or `CertificatesUnusable`.
    """
    if not _is_any_set("HETSCHED_EXTENDER_CLIENTS", "HETSCHED_EXTENDER_CLIENTS_FILE"):
        hint = "List the names of client certificates, as NAME or NAME=CLUSTER, separated by commas"
        raise InputError("ExtenderClientsMissing", "no client is listed", place="HETSCHED_EXTENDER_CLIENTS", hint=hint)
    folder = Path(os.environ.get("HETSCHED_EXTENDER_CERTIFICATES") or data_dir / "extender" / "server")
    if not all((folder / name).exists() for name in ("tls.crt", "tls.key", "ca.crt")):
        hint = (
            f"Create them with `hetsched certs {folder.parent}`, or set "
            "HETSCHED_EXTENDER_CERTIFICATES to another folder"
        )
        raise InputError("CertificatesUnusable", "certificates are missing", place=str(folder), hint=hint)


def connection(
    name: str, kubeconfig: Path | None, context: str, in_cluster: bool, namespaces: list[str], shadow: str | None
) -> SupervisedProgram | None:
    """Return the program that connects the cluster of `kubeconfig` or `in_cluster`, or None if neither is set.

    `shadow` is the scheduler of shadow mode, empty to leave shadow mode, and None to keep the mode.
    """
    if kubeconfig is None and not in_cluster:
        return None
    words = ["connect", name, *(f"--namespace={namespace}" for namespace in namespaces)]
    if kubeconfig is not None:
        words += [f"--kubeconfig={kubeconfig}", f"--context={context}"]
    if in_cluster:
        words.append("--in-cluster")
    if shadow is not None:
        words.append(f"--shadow={shadow}" if shadow else "--no-shadow")
    return SupervisedProgram("connect", standalone.django_command(*words))


def environment(data_dir: Path, host: str, socket_file: Path | None) -> dict[str, str]:
    """Return the environment of all processes; an embedded database or store is used where none is configured."""
    env = dict(os.environ)
    if socket_file is not None:
        env["REDIS_URL"] = f"unix://{socket_file}"
    if not _is_any_set(*_DATABASE):
        standalone.set_secret_key(env, data_dir)
    env.setdefault("HETSCHED_DEMO", "0")
    return env | standalone.common_environment(env, data_dir, host)


def _is_any_set(*variables: str) -> bool:
    return any(os.environ.get(name) for name in variables)
