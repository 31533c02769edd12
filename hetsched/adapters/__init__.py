"""Adapters between external formats (Kubernetes objects, trace files, a simulated fleet) and contracts.

May import: hetsched.contracts, hetsched.isa, PyYAML, msgspec, the standard library.
Never: Django, Celery, the engine, a network connection.
"""
