"""Instruction set of a machine: kernel, device tree, compilers, and emulators with their slowdown."""
