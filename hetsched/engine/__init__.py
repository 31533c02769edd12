"""Scheduling decisions as pure functions of data: cluster state, scheduling cycle, explanations and plugins.

May import: hetsched.contracts, hetsched.isa, NumPy.
Never: Django, Celery, Redis, Kubernetes clients, logging, clocks, randomness, files, sockets.
"""
