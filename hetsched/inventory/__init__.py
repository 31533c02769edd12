"""The fleet: clusters, nodes, and the facts reported about each node.

May import: hetsched.journal, hetsched.contracts, hetsched.isa, hetsched.engine.
Must not import: the apps for pods and decisions. Those apps import this app and receive its changes through the signal
in `signals.py`.
"""
