"""Lives here: how a Kubernetes API server is spoken to: its address and credentials, raw calls, list and watch.

May import: hetsched.contracts, hetsched.adapters, the kubernetes client, msgspec, clocks, threads.
Never: Django, Celery, the engine; a decision about what was read.
"""
