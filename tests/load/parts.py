"""The load scenarios and their goals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hetsched.cli.bench.sockets import Sockets
from hetsched.lab.bench.processes import pids_of, used_seconds

from .planes import CLUSTER, Plane, inside
from .report import Goal, Part, at_most, durations, none_of
from .submitting import Submitted, burst, steady

_TOPIC = f"cluster:{CLUSTER}"


class Listening(Sockets):
    """Sockets that also record when they were reconnected."""

    def back_after(self, moment: float) -> list[float]:
        """Return, for each socket that reconnected, the seconds from `moment` until it got a response."""
        return [min(at) - moment for client in self._clients if (at := [at for at in client.greeted if at > moment])]


class Meter:
    """Resource usage of the machine and of the control plane's programs during a scenario."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.before = os.getloadavg()
        self.memory = plane.memory_mib()
        self._used = plane.processor_seconds()
        self._own = time.process_time()

    def figures(self, each: int) -> dict[str, Any]:
        """Return the fields that every part of a report has; `each` is the number of requests over which the time is
        divided.
        """
        used = used_seconds(self._used, self.plane.processor_seconds())
        used["this client"] = time.process_time() - self._own
        return {
            "load_average": {"before": _rounded(self.before), "after": _rounded(os.getloadavg())},
            "processor_millis_each": {name: round(1000 * took / max(each, 1), 3) for name, took in used.items()},
            "memory_mib": {name: round(mib) for name, mib in self.plane.memory_mib().items()},
        }


def _rounded(values: Any) -> list[float]:
    return [round(value, 2) for value in values]


def flood(plane: Plane, count: int, clients: int) -> Part:
    """Submit as fast as possible; one in five submissions is sent twice with the same key."""
    meter = Meter(plane)
    found = asyncio.run(burst(plane.server, count, clients, 0.2, prefix="burst", patience=400))
    scale = count / 10_000
    refused = sum(answer.status == 429 for answer in found.answers)
    note = "429 with Retry-After in between" if refused else "no 429"
    goals = [
        at_most(f"all {count} accepted ({note})", 60 * scale, found.accepted_seconds, "s"),
        at_most("accepting one, p99", 1000, p99(found.accepting_seconds), "ms"),
        at_most("all decided", 300 * scale, found.decided_seconds, "s"),
        *whole(found),
    ]
    slowest = max(found.accepting_seconds, default=0.0)
    return Part(
        "burst with retries", plane.backend, {"submissions": count, "clients": clients, "retries": "20 %"}, goals,
        [durations("accept", found.accepting_seconds), durations("submit to decision", found.to_decision_seconds)],
        found.outcomes, counts=_counts(found), lines={"accepted a second": _rate(found)},
        notes=[f"The slowest acceptance took {slowest:.2f} s."], **meter.figures(len(found.answers)),
    )  # fmt: skip


def pace(plane: Plane, per_second: float, seconds: float) -> Part:
    """Submit at a steady rate; the first seconds are not measured."""
    asyncio.run(steady(plane.server, per_second, 5, prefix="warm", patience=60))
    meter = Meter(plane)
    found = asyncio.run(steady(plane.server, per_second, seconds, prefix="pace", patience=120))
    goals = [at_most("submit to decision, p99", 250, p99(found.to_decision_seconds), "ms"), *whole(found)]
    return Part(
        "steady rate", plane.backend, {"perSecond": per_second, "seconds": seconds}, goals,
        [durations("accept", found.accepting_seconds), durations("submit to decision", found.to_decision_seconds)],
        found.outcomes, counts=_counts(found), **meter.figures(len(found.answers)),
    )  # fmt: skip


def listeners(plane: Plane, sockets: int, per_second: float, seconds: float) -> Part:
    """Subscribe sockets while pods are submitted at a steady rate, then kill every web process once."""
    asyncio.run(steady(plane.server, per_second, 3, prefix="hush", patience=60))
    url = f"http://{plane.server.host}:{plane.server.port}"
    meter = Meter(plane)
    with Listening(url, plane.server.token, _TOPIC, sockets) as listening:
        found = asyncio.run(steady(plane.server, per_second, seconds, prefix="heard", patience=60))
        time.sleep(1)
        written = written_at(plane)
        delays = [at - written[number] for number, at in listening.received() if number in written]
        rates = listening.rates()
        # read now, because the processor time of killed processes cannot be read later
        around = meter.figures(len(found.answers))
        killed_at = time.time()
        for pid in pids_of(plane.process.popen.pid, "uvicorn"):
            os.kill(pid, signal.SIGKILL)
        until = killed_at + 90
        while len(listening.back_after(killed_at)) < sockets and time.time() < until:
            time.sleep(0.2)
        back = listening.back_after(killed_at)
        wrong = _behind(plane, listening)
        gaps = listening.gaps
    goals = [
        at_most("written to heard, p99", 500, p99(delays), "ms"),
        none_of("sockets that did not come to what a fresh one gets (undetected gaps)", wrong),
        Goal("all back after all were dropped", "<= 30 s", f"{len(back)} in {max(back, default=0.0):.1f} s",
             len(back) == sockets and max(back) <= 30),
        *whole(found),
    ]  # fmt: skip
    return Part(
        "sockets", plane.backend, {"sockets": sockets, "updatesPerSecond": per_second, "seconds": seconds}, goals,
        [durations("written to heard", delays), durations("back after the drop", back)], found.outcomes,
        counts=_counts(found) | {"gaps noticed and closed": gaps},
        notes=[f"Messages a second to a socket: {sum(rates) / max(len(rates), 1):.1f}."],
        **around,
    )  # fmt: skip


def soak(plane: Plane, minutes: float, per_second: float, *, fault_every_seconds: float) -> Part:
    """Keep a steady rate while programs are killed one after the other, and check that no memory or table grows."""
    meter = Meter(plane)
    watch = _Watch(plane)
    with watch.sampling(), _killing_programs(plane, fault_every_seconds) as faults:
        found = asyncio.run(steady(plane.server, per_second, 60 * minutes, prefix="soak", patience=120, most_kept=1000))
    violations = invariants(plane)
    first, last = watch.ends()
    growth = {name: 100 * (last[name] / first[name] - 1) for name in first if name in last and first[name]}
    worst = max(growth, key=lambda name: growth[name], default="")
    refused = sum(count for name, count in found.outcomes.items() if name.startswith("5"))
    goals = [
        *whole(found),
        none_of("broken invariants", len(violations)),
        none_of("answers 5xx other than 503", refused - found.outcomes.get("503", 0)),
        at_most(f"memory, growth of the worst program ({worst}) after the first third", 5, growth.get(worst), "%"),
    ]
    size = {"minutes": minutes, "perSecond": per_second, "faultEverySeconds": fault_every_seconds}
    return Part(
        "soak", plane.backend, size, goals,
        [durations("accept", found.accepting_seconds), durations("submit to decision", found.to_decision_seconds)],
        found.outcomes, counts=_counts(found) | {f"killed {name}": count for name, count in faults.items()},
        lines={f"memory of {name}, MiB": points for name, points in watch.lines.items()},
        notes=[str(violation) for violation in violations], **meter.figures(len(found.answers)),
    )  # fmt: skip


def whole(found: Submitted) -> list[Goal]:
    missing = found.wanted - len(found.accepted)
    undecided = Goal("undecided in the end", "0", str(found.undecided), found.undecided == 0)
    return [
        none_of("never accepted", missing), none_of("lost after they were accepted", found.lost),
        none_of("doubled", found.doubled), undecided, none_of("429 without Retry-After", found.bare_refusals),
    ]  # fmt: skip


def _counts(found: Submitted) -> dict[str, int]:
    return {
        "wanted": found.wanted, "accepted": len(found.accepted), "listed": len(found.rows),
        "answered again": found.replayed, "refused for now": sum(answer.status == 429 for answer in found.answers),
    }  # fmt: skip


def p99(seconds: list[float]) -> float | None:
    return dict(durations("", seconds).milliseconds).get("p99")


def _rate(found: Submitted) -> list[tuple[float, float]]:
    """Count the accepted submissions in each second of the run."""
    counted: dict[int, int] = {}
    for answer in found.answers:
        if answer.status == 202:
            second = int(answer.sent_at + answer.took_seconds - found.began_at)
            counted[second] = counted.get(second, 0) + 1
    return [(float(second), float(counted.get(second, 0))) for second in range(max(counted, default=-1) + 1)]


def _behind(plane: Plane, listening: Sockets) -> int:
    """Wait until every socket has the current document; return the number of sockets that do not get it in time."""
    until = time.monotonic() + 60
    while True:
        newest = max(written_at(plane), default=0)
        wrong = listening.behind(newest, listening.fresh_document())
        if not wrong or time.monotonic() > until:
            return wrong
        time.sleep(1)


def written_at(plane: Plane) -> dict[int, float]:
    """Return the write time of each event of the cluster by event number, in seconds since 1970."""
    code = (
        "from hetsched.journal.models import OutboxEvent\n"
        f"rows = OutboxEvent.objects.filter(topic={_TOPIC!r}).values_list('revision', 'created_at')\n"
        "out = [[number, at.timestamp()] for number, at in rows]"
    )
    rows = inside(plane.env, code)
    return dict(rows)


def invariants(plane: Plane) -> list[str]:
    """Return the violated database invariants as texts."""
    code = (
        "from hetsched.placement.queries.invariants import check_invariants\n"
        "out = [str(one) for one in check_invariants()]"
    )
    return list(inside(plane.env, code))


class _Watch:
    """Memory of each program, sampled every few seconds."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._over = threading.Event()
        self.lines: dict[str, list[tuple[float, float]]] = {}

    @contextmanager
    def sampling(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _look(self) -> None:
        began = time.monotonic()
        while not self._over.wait(5):
            for name, mib in self._plane.memory_mib().items():
                self.lines.setdefault(name, []).append((time.monotonic() - began, mib))

    def ends(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the medians of the middle third and of the last third of the run; the first third is ignored, because
        a restarted program starts small.
        """
        return self._third(1), self._third(2)

    def _third(self, number: int) -> dict[str, float]:
        found = {}
        for name, points in self.lines.items():
            part = sorted(mib for _, mib in points[len(points) * number // 3 : len(points) * (number + 1) // 3])
            if part:
                found[name] = part[len(part) // 2]
        return found


@contextmanager
def _killing_programs(plane: Plane, every_seconds: float) -> Iterator[dict[str, int]]:
    """Kill one program after the other with SIGKILL during the block, in random order."""
    killed: dict[str, int] = {}
    over = threading.Event()
    dice = random.Random(7)

    def kill() -> None:
        while not over.wait(every_seconds):
            role = dice.choice(("worker", "worker", "uvicorn", "beat"))
            found = pids_of(plane.process.popen.pid, role)
            if found:
                os.kill(dice.choice(found), signal.SIGKILL)
                killed[role] = killed.get(role, 0) + 1

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
