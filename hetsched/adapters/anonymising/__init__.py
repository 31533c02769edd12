"""Lives here: clusters without their names, so that whoever helps with a decision does not learn whose it is.

May import: hetsched.contracts, hetsched.isa, hetsched.adapters, msgspec.
Never: Django, Celery, the engine; a name or a hash of one in what is returned.
"""

from .whole import anonymised

__all__ = ["anonymised"]
