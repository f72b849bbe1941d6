"""What a manifest says: its fields, their defaults, and the rules over several of them."""
