"""Documents that the command line and REST answer with, and that the ledger stores."""
