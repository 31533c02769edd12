"""`hetsched isa`: compare and explain instruction sets, and inspect programs."""
