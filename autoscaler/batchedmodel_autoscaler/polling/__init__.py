"""Asks every pod's sidecar for its stats, within bounds, in turns of namespaces and models."""
