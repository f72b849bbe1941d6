"""Our model server, over its Unix socket."""
