"""Experiments on the engine: trace replay, policy comparison with plots, benchmarks.

May import: hetsched.engine, hetsched.isa, hetsched.contracts, NumPy, clocks, seeded randomness.
Never: Django, Celery, the adapters (callers read the files), a network connection.
"""
