"""The Kubernetes API server: client, informer, binding, eviction, leader lease, events and extender messages.

May import: hetsched.contracts, hetsched.adapters, the kubernetes client, msgspec, clocks, threads.
"""
