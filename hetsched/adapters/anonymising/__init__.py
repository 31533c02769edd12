"""Anonymised clusters: content without names, so that a helper can analyse a decision without learning the owner.

May import: hetsched.contracts, hetsched.isa, hetsched.adapters, msgspec.
Never: Django, Celery, the engine; a name or a hash of a name in a result.
"""

from .whole import anonymised

__all__ = ["anonymised"]
