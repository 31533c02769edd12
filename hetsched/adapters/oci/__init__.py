"""Lives here: what container images are built for: references, indexes and manifests, registries that serve them.

May import: hetsched.contracts, hetsched.isa, hetsched.adapters, msgspec, clocks, threads, sockets.
Never: Django, Celery, the engine; a decision about what was read.
"""
