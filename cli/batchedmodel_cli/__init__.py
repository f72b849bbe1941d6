"""The command line: `batchedmodel run`, `simulate` and `diff`.

It starts the other processes and imports none of them.
"""
