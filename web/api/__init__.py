"""Lives here: REST, one file per noun: its documents, its views and its routes.

May import: the Django apps, hetsched.contracts, hetsched.adapters, hetsched.engine (what-if only).
Never: a transaction of its own, a query in a loop, an answer that is not JSON, YAML or a problem document.
"""
