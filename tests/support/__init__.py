"""Helpers shared by the tests; nothing of the product imports them."""
