"""Lives here: the command line, one file per group of commands, and what they share: options, printing, the client.

May import: every floor below; Django only inside the commands that run on a server's machine.
Never: web, workers, a decision of its own.
"""
