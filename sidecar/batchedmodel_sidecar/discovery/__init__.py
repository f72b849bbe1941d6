"""What callers may ask of the model: an example, a short page, and an OpenAPI document."""
