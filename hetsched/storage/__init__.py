"""Storage below the apps: bulk rows, prepared queries, JSON fields, triggers, locks, text lookups and the backup.

May import: hetsched.contracts and Django.
Must not contain: models of an app.
"""
