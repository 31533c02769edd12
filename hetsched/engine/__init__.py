"""Lives here: decisions, data in and data out: the ledger, the scheduling cycle, explanations and the plugins.

May import: hetsched.contracts, hetsched.isa, NumPy.
Never: Django, Celery, Redis, Kubernetes clients, logging, clocks, randomness, files, sockets.
"""
