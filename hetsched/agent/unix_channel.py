"""gRPC calls to a local service on a unix socket: the container runtime or the kubelet.

The service may restart, hang or send an oversized response; the agent must neither block nor exit. Every call has a
time limit and every response a size limit. After a lost connection the next call opens a new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc


class CallFailure(Exception):
    """A call failed; `code` is the gRPC status, and `away` is true if the service is unreachable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.away = code in {"UNAVAILABLE", "CANCELLED"}


class UnixChannel:
    """Connection that is opened at its first use; failures are raised as exceptions of the class `failure`."""

    def __init__(
        self, socket: Path, service: str, failure: type[CallFailure], *, most_bytes: int, timeout_seconds: float
    ) -> None:
        self._address = f"unix:{socket}"
        self._service = service
        self._failure = failure
        self._timeout_seconds = timeout_seconds
        self._options = (
            ("grpc.max_receive_message_length", most_bytes),
            ("grpc.default_authority", "localhost"),
            ("grpc.enable_http_proxy", 0),
            # A new channel does not share the failed connection, and the backoff, of the one that it replaces.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 1000),
        )
        self._channel: Any = None

    def call(self, method: str, request: Any, answer: Any) -> Any:
        """Return the service's response. Raises: the class `failure`, a subclass of CallFailure."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(self._address, options=self._options)
        call = self._channel.unary_unary(
            f"/{self._service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return call(request, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            failure = self._failure(error.code().name, str(error.details() or "")[:300])
            if failure.away:
                self.close()
            raise failure from None

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
