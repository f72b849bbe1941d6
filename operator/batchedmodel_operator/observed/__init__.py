"""What there is of a BatchedModel, and what is remembered of it, as records."""
