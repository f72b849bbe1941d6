"""Adapters of a model: found, fetched, read, kept, and put on the device."""
