"""What callers ask of our own engine, read, checked and tokenised."""
