"""Entry point of `hetsched`, and of `python -m hetsched.cli` if the `hetsched` script is not installed.

The agent runs on every node and must stay small, so it starts before the other commands are loaded.
"""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["agent"]:
        from hetsched.agent.command import main as agent

        sys.exit(agent(sys.argv[2:]))
    from .main import main as commands

    commands()


if __name__ == "__main__":
    main()
