"""What is measured of a model before it serves: sharing, seconds, memory."""
