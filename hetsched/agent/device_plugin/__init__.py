"""Lives here: the device plugin that gives containers the cards that the control plane granted to their pods.

May import: the rest of hetsched.agent, hetsched.contracts, gRPC, the standard library.
Never: gives out a card that no verified allocation grants, or talks to anything but the kubelet's sockets.
"""

from .settings import CardSettings, card_settings

__all__ = ["CardSettings", "card_settings"]
