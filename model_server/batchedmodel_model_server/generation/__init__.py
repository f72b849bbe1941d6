"""Generates texts token by token: sequences that come and go at every step, over a paged cache."""
