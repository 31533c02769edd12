"""REST API: one module per resource with its documents, views and routes.

May import: the Django apps, hetsched.contracts, hetsched.adapters, hetsched.engine (what-if only).
Never: a transaction of its own, a query in a loop, a response that is not JSON, YAML or a problem document.
"""
