"""Servers of somebody else's, over TCP: the link to them, and one module for each protocol."""
