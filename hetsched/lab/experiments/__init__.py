"""Reproduced comparisons of publications, one per file, each with the publication's baselines.

May import: the same packages as `hetsched.lab`. A baseline is a policy like any other and not a stored number.
Must not contain results that were not computed in this run; published values are listed in the field `published`.
"""
