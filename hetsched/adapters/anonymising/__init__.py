"""Anonymised cluster content, which lets a third party analyse a decision without learning who owns the cluster.

May import: hetsched.contracts, hetsched.isa, hetsched.adapters, msgspec.
Never: Django, Celery, the engine; a name or a hash of a name in a result.
"""

from .whole import anonymised

__all__ = ["anonymised"]
