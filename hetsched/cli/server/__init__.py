"""Commands that run a server, or administer its database, certificates and tokens on its machine."""
