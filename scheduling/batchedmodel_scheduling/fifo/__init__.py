"""Policies that keep the order of arrival: `Greedy` and `Window`."""
