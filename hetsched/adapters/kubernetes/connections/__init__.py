"""Connections to API servers: credentials, their validation and renewal, and the rights that they need."""
