"""What handlers are written against."""
