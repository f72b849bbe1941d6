"""HTTP: small requests are answered on connections of our own, all others stream.

Used by the sidecar for its callers and by the model server for the sidecar; `ports` by all
processes for those who look after them. Knows nothing of models, batches or what a path means.
"""
