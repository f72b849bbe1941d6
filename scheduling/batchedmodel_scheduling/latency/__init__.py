"""How long a batch takes, and how far the device is from its profile."""
