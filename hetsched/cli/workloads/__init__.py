"""Commands about workloads: submit, plan, hold, explain, and their text views."""
