"""What the sidecar and our model server say to each other about generated tokens."""
