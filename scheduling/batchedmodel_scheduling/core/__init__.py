"""What every policy shares: the seam, bounds, pipeline, fair turns."""
