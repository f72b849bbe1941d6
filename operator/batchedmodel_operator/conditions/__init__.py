"""What a BatchedModel's status and its Events say, out of what was seen, planned and done. Pure."""
