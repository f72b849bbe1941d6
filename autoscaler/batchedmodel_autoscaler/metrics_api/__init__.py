"""`custom.metrics.k8s.io`, as the API server's aggregation layer asks for it."""
