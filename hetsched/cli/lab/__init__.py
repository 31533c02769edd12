"""`hetsched experiment` and `hetsched simulate`, and the reports of both."""
