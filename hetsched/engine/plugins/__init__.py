"""Built-in plugins, one file each, found by scanning this folder and its groups.

May import: what the engine may import.
Never: each other.
"""
