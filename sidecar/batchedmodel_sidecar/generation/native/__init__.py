"""Texts from the engine of our own model server: requests into tokens, tokens into answers."""
