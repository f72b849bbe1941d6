"""The HTTP edge: the Open Inference Protocol v2 and its batch extension, over a Unix socket."""
