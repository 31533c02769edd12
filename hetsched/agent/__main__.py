"""`python -m hetsched.agent`: the agent with nothing around it."""

import sys

from .command import main

sys.exit(main(program="python -m hetsched.agent"))
