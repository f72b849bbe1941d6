"""Adapters (LoRA) of one base model: their files, and many of them in one batch."""
