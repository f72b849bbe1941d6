"""HTTP for small requests on connections of our own, with aiohttp behind it for all others.

Used by the sidecar for its callers and by the model server for the sidecar. Knows nothing of
models, batches or what a path means.
"""
