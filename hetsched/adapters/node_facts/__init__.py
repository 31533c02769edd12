"""Node facts from several sources: agent reports, collected facts, and how they are merged and accepted."""
