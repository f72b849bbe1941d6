"""The deadline-driven policy: what shares a batch, what goes first, what must be given up."""
