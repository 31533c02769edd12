"""Lives here: the performance scenarios, a file each, and what they share: a seeded fleet and the arithmetic of runs.

May import: what the lab may import.
Never: a threshold; a scenario measures, the reader judges.
"""
