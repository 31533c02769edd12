"""Lives here: outside formats (Kubernetes objects, trace files, a simulated fleet) turned into contracts, and back.

May import: hetsched.contracts, hetsched.isa, PyYAML, msgspec, the standard library.
Never: Django, Celery, the engine, a network connection.
"""
