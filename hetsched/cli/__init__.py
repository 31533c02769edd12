"""Command line: one file per group of commands, and their shared options, output and client.

May import: every layer below; Django only inside the commands that run on a server's machine.
Never: web, workers, decisions of its own.
"""
