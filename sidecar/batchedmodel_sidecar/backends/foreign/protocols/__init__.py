"""One module for each protocol that a foreign server may speak."""
