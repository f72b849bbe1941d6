"""Work that would stop the loop, done by processes beside the sidecar's.

The JSON library holds the interpreter's lock while it works, so a thread would not help: a body of
ten megabytes stops the loop, and with it all batches, for a tenth of a second. Chat templates are
programs of a model's files, and are bounded in CPU and memory.
"""
