"""Bodies into rows and answers into bodies, in this process or in one beside it."""
