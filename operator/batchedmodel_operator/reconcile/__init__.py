"""One BatchedModel's way from what is there to what is wanted."""
