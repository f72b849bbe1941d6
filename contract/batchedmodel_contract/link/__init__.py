"""The link between sidecar and model server: one Unix socket, frames in both directions."""
