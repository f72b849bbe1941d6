"""Adapters of a model: which there should be, and in what state they are."""
