"""Generated text: requests that wait for a language model's server, and its streams."""
