"""Storage below the apps: bulk rows, prepared queries, planner statistics, JSON fields, triggers, locks and the backup.

May import: hetsched.contracts and Django.
Must not contain: models of an app.
"""
