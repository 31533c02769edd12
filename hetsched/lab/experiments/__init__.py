"""Lives here: the comparison of each publication, a file each, against its own baselines, rebuilt to be run anywhere.

May import: what the lab may import. A baseline is a policy like any other, never a number.
Never: a result that was not computed in this run; the figures of a publication stand beside ours, as `published`.
"""
