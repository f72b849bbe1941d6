"""Which request goes to the engine of a language model next, and when."""
