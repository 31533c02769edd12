"""The fleet: clusters, nodes, and the facts reported about each node.

May import: hetsched.journal, hetsched.contracts, hetsched.isa, hetsched.engine.
Must not import: pods and decisions. The apps above are notified of changes by the signal in `signals.py`.
"""
