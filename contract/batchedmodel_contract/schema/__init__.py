"""The kinds of values that fields may hold, and the definition of the custom resource."""
