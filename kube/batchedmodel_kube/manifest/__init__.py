"""BatchedModels and their classes: all fields, and the rules over several of them."""
