"""Anonymised cluster content, with which a third party can analyse a decision without learning whose cluster it is.

May import: hetsched.contracts, hetsched.isa, hetsched.adapters, msgspec.
Never: Django, Celery, the engine; a name or a hash of a name in a result.
"""

from .whole import anonymised

__all__ = ["anonymised"]
