"""Credentials that a program prints, as client-go credential plugins do.

`look` runs the program of the user's own kubeconfig. A server runs only the programs that its installation allows.
"""
