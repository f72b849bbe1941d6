"""Bodies of requests: read within bounds of size, memory and time."""
