"""Node facts of several sources: agent reports, collected facts, their merge and their acceptance."""
