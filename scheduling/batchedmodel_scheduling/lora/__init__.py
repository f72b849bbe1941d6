"""Which adapters the device has at a time, and whose rows and texts go together."""
