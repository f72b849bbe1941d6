"""The adapters of the model behind: by which names requests ask for them, and whether they can."""
