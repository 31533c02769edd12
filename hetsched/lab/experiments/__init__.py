"""Reproduced comparisons of the publications, one per file, each with the publication's own baselines.

May import: what the lab may import. A baseline is a policy like any other, never a number.
Never: a result that was not computed in this run; the published figures are listed next to ours, as `published`.
"""
