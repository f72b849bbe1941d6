"""Ports that few are to ask: bounded in connections, and in the time of heads and of idleness."""
