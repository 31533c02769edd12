"""Devices of a cluster: their state, their use by claims, and the search for free devices."""
