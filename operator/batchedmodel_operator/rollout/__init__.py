"""How the pods of a revision are replaced."""
