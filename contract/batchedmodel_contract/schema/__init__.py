"""The kinds of values that fields may hold, and the reader of records that are declared by them."""
