"""The command line: `batchedmodel run`, `simulate` and `diff`.

It starts the other processes and imports none of them, but for the pure parts that `diff/dry_run`
asks what an edit does.
"""
