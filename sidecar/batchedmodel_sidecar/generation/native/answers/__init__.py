"""Text in the form of each protocol."""
