"""What a manifest says: its fields, their defaults and their rules."""
