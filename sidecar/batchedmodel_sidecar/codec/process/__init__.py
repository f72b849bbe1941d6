"""Large JSON bodies, parsed and made by a process beside the sidecar's.

The JSON library holds the interpreter's lock while it works, so a thread would not help: a body of
ten megabytes stops the loop, and with it all batches, for a tenth of a second.
"""
