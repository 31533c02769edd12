"""`python -m hetsched.agent`: the agent without hetsched's other commands."""

import sys

from .command import main

sys.exit(main(program="python -m hetsched.agent"))
