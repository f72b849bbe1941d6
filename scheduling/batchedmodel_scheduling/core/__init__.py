"""What every policy shares: the interface, bounds, the pipeline, fair turns between tenants."""
