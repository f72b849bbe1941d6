"""What an engine of our own does in its next step. Pure; the simulator asks the same objects."""
