"""Lives here: policies and their revisions: drafts, what is active, which policy a pod gets.

May import: hetsched.inventory, hetsched.journal, hetsched.contracts, hetsched.engine.
Never: running a policy; the workers and what-if do that.
"""
