"""`hetsched bench`: the performance scenarios that need a server, an API server or a browser."""
