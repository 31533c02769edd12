"""Storage below the apps: batches, bulk rows, prepared queries, JSON fields, triggers, locks and text lookups.

May import: hetsched.contracts and Django.
Never: models of an app.
"""
