"""Forward passes on the device, and what is done when one fails."""
