"""BatchedModels and their classes, judged whole: with the rules over several fields."""
