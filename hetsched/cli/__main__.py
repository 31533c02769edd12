"""`python -m hetsched.cli`: the command where its script is not installed."""

from .main import main

main()
