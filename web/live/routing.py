"""WebSocket routes."""

from typing import Any

from django.urls import path, re_path

from .sockets import LiveConsumer, UnknownAddressConsumer

# Channels routes URLs to ASGI applications, which the type annotations of Django's `path` do not allow.
_application: Any = LiveConsumer.as_asgi()
_elsewhere: Any = UnknownAddressConsumer.as_asgi()
websocket_urlpatterns: list[Any] = [path("ws/live/", _application), re_path(r"", _elsewhere)]
