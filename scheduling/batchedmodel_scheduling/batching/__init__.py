"""Policies that make batches of waiting items: `Deadline`, `Greedy` and `Window`."""
