"""What one caller can do to the others: attacks by theme, and what runs and judges them."""
