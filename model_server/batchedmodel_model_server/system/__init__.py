"""What the machine and the container allow."""
