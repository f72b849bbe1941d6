"""Tensors, bodies and batches between callers, sidecar and model server."""
