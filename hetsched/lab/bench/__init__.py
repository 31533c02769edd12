"""Performance scenarios, one per file, with a shared seeded fleet and the statistics of runs.

May import: the same packages as `hetsched.lab`.
Must not contain thresholds: a scenario only measures.
"""
