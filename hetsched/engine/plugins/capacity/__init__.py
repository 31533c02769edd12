"""Fit and balance amounts of resources."""
