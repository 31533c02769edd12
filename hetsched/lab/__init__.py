"""Experiments on the engine: trace replay, policy comparison with plots, benchmarks.

May use: hetsched.engine, hetsched.isa, hetsched.contracts, NumPy, clocks, seeded randomness.
Must not use: Django, Celery, the adapters (callers read the files), or the network.
"""
