"""ResourceClaims on the API server."""
