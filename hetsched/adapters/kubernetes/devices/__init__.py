"""Devices on the API server: their ResourceClaims and their health."""
