"""REST API: one module per resource with its documents, views and routes.

May import: the Django apps, hetsched.contracts, hetsched.adapters, hetsched.engine (what-if only).
Never: open a transaction directly, run a query in a loop, or return a response that is not JSON, YAML or a problem
document.
"""
