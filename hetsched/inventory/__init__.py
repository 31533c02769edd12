"""The fleet: clusters, nodes, and the facts reported about each node.

May import: hetsched.journal, hetsched.contracts, hetsched.isa, hetsched.engine.
Must not import: pods and decisions. They import this app and are notified of changes by the signal in `signals.py`.
"""
