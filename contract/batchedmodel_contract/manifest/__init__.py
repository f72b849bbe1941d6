"""What sidecar and model server hold of a manifest: values, their defaults and their rules."""
