"""Performance scenarios, one in each file, with a shared seeded fleet and the statistics of runs.

May import: what the lab may import.
Never: a threshold; a scenario measures, the reader judges.
"""
