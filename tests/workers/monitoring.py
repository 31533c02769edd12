"""A real Prometheus with real exporters on loopback, scraped every second.

Some exporters report this machine; others report values of a test through their textfile collector.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests import parts
from tests.system.processes import accepts, free_port, wait_until

# Gauges of a simulated machine, and its counters with their increase per second.
_GAUGES = {"node_memory_MemTotal_bytes": 8 * 2**30}
_COUNTERS = {
    "cpu": ('node_cpu_seconds_total{cpu="0",mode="user"}', 'node_cpu_seconds_total{cpu="0",mode="idle"}'),
    "network": ('node_network_receive_bytes_total{device="eth0"}', 'node_network_transmit_bytes_total{device="eth0"}'),
    "disk": ('node_disk_read_bytes_total{device="sda"}', 'node_disk_written_bytes_total{device="sda"}'),
}


class Machine:
    """A simulated machine: used cores, used bytes of memory, and bytes per second of network and disk in each
    direction.
    """

    def __init__(self, **use: float) -> None:
        self.use = {"cpu": 0.0, "memory": 0.0, "network": 0.0, "disk": 0.0, **use}
        self._counted = dict.fromkeys((name for names in _COUNTERS.values() for name in names), 0.0)
        self._at = time.monotonic()

    def write(self, folder: Path) -> None:
        """Write the machine's current metrics."""
        now = time.monotonic()
        for kind, (first, second) in _COUNTERS.items():
            self._counted[first] += self.use[kind] * (now - self._at)
            self._counted[second] += (1.0 if kind == "cpu" else self.use[kind]) * (now - self._at)
        self._at = now
        gauges = {
            **_GAUGES,
            "node_memory_MemAvailable_bytes": _GAUGES["node_memory_MemTotal_bytes"] - self.use["memory"],
        }
        lines = [f"{name} {value}" for name, value in {**self._counted, **gauges}.items()]
        part = folder / "machine.part"
        part.write_text("\n".join(lines) + "\n")
        part.rename(folder / "machine.prom")


class Monitoring:
    """Prometheus at `url`; `down` and `exporter_down` stop its process or an exporter."""

    def __init__(self, url: str, prometheus: subprocess.Popen[bytes], exporters: dict[str, subprocess.Popen[bytes]]):
        self.url = url
        self.host = urllib.parse.urlsplit(url).netloc
        self._prometheus, self._exporters = prometheus, exporters

    def query(self, text: str) -> list[dict[str, Any]]:
        asked = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        with urllib.request.urlopen(asked, timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def value(self, text: str) -> float:
        found = self.query(text)
        return float(found[0]["value"][1]) if found else 0.0

    def down(self) -> None:
        _end(self._prometheus)

    def exporter_down(self, name: str) -> None:
        _end(self._exporters[name])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def _exporter(arguments: list[str], log: Path) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    argv = [str(parts.require("node-exporter")), f"--web.listen-address=127.0.0.1:{port}", *arguments]
    with log.open("ab") as output:
        return subprocess.Popen(argv, stdout=output, stderr=output, start_new_session=True), port


@contextmanager
def a_monitoring(machines: Mapping[str, Machine]) -> Iterator[Monitoring]:
    """Run Prometheus with an exporter for each simulated machine, labelled by its name, and one for this machine.

    This machine has no label; it is identified by the address in its series.
    """
    folder = Path(tempfile.mkdtemp(prefix="hetsched-prometheus-"))
    processes: dict[str, subprocess.Popen[bytes]] = {}
    over = threading.Event()
    targets: list[dict[str, Any]] = []
    try:
        for name, machine in machines.items():
            (folder / name).mkdir()
            machine.write(folder / name)
            flags = [
                "--collector.disable-defaults",
                "--collector.textfile",
                f"--collector.textfile.directory={folder / name}",
            ]
            processes[name], port = _exporter(flags, folder / "log")
            targets.append({"targets": [f"127.0.0.1:{port}"], "labels": {"node": name}})
        kinds = [f"--collector.{kind}" for kind in ("cpu", "meminfo", "netdev", "diskstats")]
        processes[""], port = _exporter(["--collector.disable-defaults", *kinds], folder / "log")
        targets.append({"targets": [f"127.0.0.1:{port}"]})
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "node", "static_configs": targets}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        own = free_port()
        argv = [
            str(parts.require("prometheus")), f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{own}",
        ]  # fmt: skip
        with (folder / "log").open("ab") as output:
            prometheus = subprocess.Popen(argv, stdout=output, stderr=output, start_new_session=True)
        processes["prometheus"] = prometheus

        def keep_writing() -> None:
            while not over.wait(0.2):
                for name, machine in machines.items():
                    machine.write(folder / name)

        writing = threading.Thread(target=keep_writing, daemon=True)
        writing.start()
        watched = Monitoring(f"http://127.0.0.1:{own}", prometheus, processes)
        wait_until(lambda: accepts(own), what=lambda: (folder / "log").read_text()[-2000:], seconds=90)
        expected = len(targets)

        def ready() -> bool:
            with suppress(OSError, ValueError, KeyError):
                return watched.value("count(count_over_time(node_memory_MemTotal_bytes[20s]) >= 3)") == expected
            return False

        wait_until(ready, what=lambda: (folder / "log").read_text()[-2000:], seconds=90)
        yield watched
    finally:
        over.set()
        for process in processes.values():
            if process.poll() is None:
                _end(process)
        shutil.rmtree(folder, ignore_errors=True)
