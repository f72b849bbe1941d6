"""How many pods a model needs, from what its pods say."""
