"""Place the members of a gang together."""
