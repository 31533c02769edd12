"""`python -m hetsched.agent`: the agent without the other commands."""

import sys

from .command import main

sys.exit(main(program="python -m hetsched.agent"))
