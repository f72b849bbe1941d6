"""What is counted and told of requests, batches and work."""
