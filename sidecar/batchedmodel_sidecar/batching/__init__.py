"""Requests between their acceptance and their end: windows, batches, retries."""
