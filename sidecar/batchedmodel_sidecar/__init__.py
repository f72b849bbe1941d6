"""The batching proxy beside every model container.

`http` and `codec` read requests, `batching` forms batches by a pure policy, and `backends` brings
them to the model server and its answers back.
"""
