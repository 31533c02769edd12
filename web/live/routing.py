"""Where the WebSocket is."""

from django.urls import path

from .sockets import live

websocket_urlpatterns = [path("ws/live/", live)]  # type: ignore[arg-type]  # Channels routes to ASGI applications
