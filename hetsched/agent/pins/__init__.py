"""Lives here: which CPUs every container of the machine is to have, and what keeps it there.

May import: the rest of hetsched.agent, hetsched.contracts, the standard library.
Never: moves a process itself, or believes an allocation that the control plane did not sign.
"""

from .pinner import Pinner

__all__ = ["Pinner"]
