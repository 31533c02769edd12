"""An agent that kills itself with SIGKILL at a chosen step, repeatedly.

`python -m tests.agent.dying_agent SOCKET FOLDER NODE CLUSTER KEY` reads one number per line, forks an agent that makes
one step and dies at the event of that number (0: it does not die), and prints `killed` or `done`. There is an event
before and after every call of the runtime and every write, rename and flush of the agent's file.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetsched.agent.cri import Runtime
from hetsched.agent.pins import Pinner
from hetsched.agent.tree import Tree
from hetsched.agent.unix_channel import UnixChannel


class Dying:
    """Count events and kill the process at one of them."""

    def __init__(self, at: int) -> None:
        self.at, self.events = at, 0

    def event(self) -> None:
        self.events += 1
        if self.events == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            self.event()
            result = function(*given, **named)
            self.event()
            return result

        return called


def step(socket: str, folder: str, node: str, cluster: str, key: str, at: int) -> None:
    dying = Dying(at)
    UnixChannel.call = dying.around(UnixChannel.call)  # type: ignore[method-assign]
    Path.rename = dying.around(Path.rename)  # type: ignore[method-assign]
    os.fsync = dying.around(os.fsync)
    pinner = Pinner(node, Runtime(Path(socket)), Path(folder), Tree())
    pinner.learn(cluster, bytes.fromhex(key), [])
    pinner.step(time.monotonic())
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            step(*sys.argv[1:6], at=int(line))
        _, status = os.waitpid(child, 0)
        print("killed" if os.WIFSIGNALED(status) else "done" if status == 0 else f"failed {status}", flush=True)


if __name__ == "__main__":
    main()
