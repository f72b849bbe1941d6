"""The model server: runs one torch model for the batching proxy beside it.

A handler is a declaration of tensors and one method, `forward`; see `api.handler`. Everything else,
from the Unix socket to the padding, is done around it.
"""
