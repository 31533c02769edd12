"""Explanations of decisions: diagnosis, nearest fit, tipping points and comparison."""
