"""Model Context Protocol server of a hetsched server: `hetsched mcp`.

May import: hetsched.client, the other commands, mcp (an optional dependency), typer.
Must not import Django or web.
"""
