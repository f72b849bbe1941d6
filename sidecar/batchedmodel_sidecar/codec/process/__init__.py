"""Large JSON bodies, parsed and made by a process beside the sidecar's.

The JSON library holds the interpreter's lock while it works, so that no thread would help: a body
of ten megabytes stops the loop, and with it everybody's batches, for a tenth of a second.
"""
