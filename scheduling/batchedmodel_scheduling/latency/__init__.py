"""How long batches and steps take: as the server measured them, corrected by what they took."""
