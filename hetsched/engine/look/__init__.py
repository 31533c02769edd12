"""Checks of a whole cluster for the report of `hetsched look`."""
