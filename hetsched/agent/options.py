"""Options of the agent on its command line and in its environment.

An option overrides its environment variable. The token is read from its file at each use, because projected tokens are
rotated while the agent runs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from hetsched.contracts.errors import InputError

STATE = Path("/var/lib/hetsched-agent")
RUNTIME = Path("/run/containerd/containerd.sock")
_MOST_TOKEN_BYTES = 16 << 10
_YES = frozenset({"1", "true", "yes", "on"})


class Reporting(msgspec.Struct, frozen=True):
    """Options of the daemon: the control plane to report to (if `server` is set) and the agent's optional functions."""

    server: str = ""
    token: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    cluster: str = ""
    state: Path = STATE
    pins: bool = False
    runtime: Path = RUNTIME
    devices: bool = False

    def bearer(self) -> str:
        """Return the current token. Raises: OSError, ValueError."""
        if self.token_file is None:
            return self.token
        with self.token_file.open("rb") as file:
            data = file.read(_MOST_TOKEN_BYTES + 1)
        token = data.decode("ascii").strip()
        if not token or len(data) > _MOST_TOKEN_BYTES or not token.isprintable() or " " in token:
            raise ValueError(f"{self.token_file} contains no token")
        return token


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the daemon; each can also be set by an environment variable."""
    parser.add_argument("--server", metavar="URL", help="control plane to report to (HETSCHED_SERVER)")
    parser.add_argument("--token", metavar="TOKEN", help="token of this node (HETSCHED_TOKEN)")
    parser.add_argument("--token-file", metavar="FILE", help="file that contains the token (HETSCHED_TOKEN_FILE)")
    parser.add_argument("--ca-file", metavar="FILE", help="CA certificates of the server (HETSCHED_CA_FILE)")
    parser.add_argument("--cluster", metavar="NAME", help="cluster that issued the token (HETSCHED_CLUSTER)")
    parser.add_argument("--state", metavar="DIR", help=f"folder for the state (HETSCHED_AGENT_STATE, {STATE})")
    parser.add_argument("--pin", action="store_true", help="pin containers to their CPUs (HETSCHED_AGENT_PIN=1)")
    parser.add_argument(
        "--runtime", metavar="SOCKET", help=f"socket of the container runtime (HETSCHED_AGENT_RUNTIME, {RUNTIME})"
    )
    parser.add_argument(
        "--devices", action="store_true", help="serve as device plugin for GPUs (HETSCHED_AGENT_DEVICES=1)"
    )


def reporting(given: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Reporting:
    """Return the values of options and environment variables. Raises: InputError `ServerInvalid`, `TokenMissing`."""

    def text(option: str, variable: str) -> str:
        return getattr(given, option) or environment.get(variable, "").strip()

    def path(option: str, variable: str) -> Path | None:
        found = text(option, variable)
        return Path(found) if found else None

    def flag(option: str, variable: str) -> bool:
        return getattr(given, option) or environment.get(variable, "").strip().lower() in _YES

    server = text("server", "HETSCHED_SERVER").rstrip("/")
    token, token_file = text("token", "HETSCHED_TOKEN"), path("token_file", "HETSCHED_TOKEN_FILE")
    if (given.token and given.token_file) or not (given.token or given.token_file) and token and token_file:
        raise InputError(
            "TokenAmbiguous", "the token and a token file are both set", place="HETSCHED_TOKEN, HETSCHED_TOKEN_FILE",
            hint="Unset one of them, or use --token or --token-file",
        )  # fmt: skip
    if server:
        _check(server)
        if not token and token_file is None:
            raise InputError(
                "TokenMissing", "the token of this node is missing", place="--token",
                hint="Create it on the server's machine: hetsched token create --role agent --cluster C --node N",
            )  # fmt: skip
    return Reporting(
        server=server,
        token="" if given.token_file else token,
        token_file=None if given.token else token_file,
        ca_file=path("ca_file", "HETSCHED_CA_FILE"),
        cluster=text("cluster", "HETSCHED_CLUSTER"),
        state=path("state", "HETSCHED_AGENT_STATE") or STATE,
        pins=flag("pin", "HETSCHED_AGENT_PIN"),
        runtime=path("runtime", "HETSCHED_AGENT_RUNTIME") or RUNTIME,
        devices=flag("devices", "HETSCHED_AGENT_DEVICES"),
    )


def _check(server: str) -> None:
    try:
        parts = urlsplit(server)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        plain = not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:
        usable = plain = None
    if not usable or not plain:
        raise InputError(
            "ServerInvalid", f"{server[:100]!r} is not a server URL: use http://host or https://host", place="--server"
        )
