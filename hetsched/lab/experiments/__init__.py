"""Comparisons of the publications, one in each file, against their own baselines, rebuilt to run anywhere.

May import: what the lab may import. A baseline is a policy like any other, never a number.
Never: a result that was not computed in this run; the figures of a publication are listed with ours, as `published`.
"""
