"""One module for each protocol that an upstream server may speak."""
