"""Versions of the model: loaded, replaced, drained."""
