"""Storage below the apps: bulk rows, prepared queries, JSON fields, triggers, locks, text lookups and the backup.

May import: hetsched.contracts and Django.
Never: models of an app.
"""
