"""CPU pinning: the target CPUs of every container of the machine, and their enforcement.

May import: the rest of hetsched.agent, hetsched.contracts, the standard library.
Never: moves processes itself, or accepts an allocation that the control plane did not sign.
"""

from .pinner import Pinner

__all__ = ["Pinner"]
