"""Device plugin that gives containers the GPUs granted to their pods.

May import: the rest of hetsched.agent, hetsched.contracts, gRPC, the standard library.
Never: assigns a GPU without a verified allocation, or connects to anything except the kubelet's sockets.
"""

from .settings import CardSettings, card_settings

__all__ = ["CardSettings", "card_settings"]
