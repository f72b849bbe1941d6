"""The batching proxy beside every model container.

Callers → `front` (admission, parsing, tokenising) → `batcher` (the asyncio shell around a pure
policy) → `model_link` (one batch over the Unix socket) → answers split back to their callers.
"""
