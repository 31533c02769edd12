"""Pages of policies: the list and the editor."""
