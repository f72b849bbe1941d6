"""HTTP for small requests on connections of our own, and a general way on them for all others.

Used by the sidecar for its callers and by the model server for the sidecar. Knows nothing of
models, batches or what a path means.
"""
