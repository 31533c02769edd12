"""Command line: one file per group of commands, and their shared options, output and client.

May import: every lower layer, but Django only inside commands that run on a server's machine.
Must not import web or workers, or make scheduling decisions.
"""
