"""The model server's end of the link to sidecars: one Unix socket, frames in both directions."""
