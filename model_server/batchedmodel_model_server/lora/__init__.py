"""Adapters (LoRA) of one base model: fetched and kept beside it, and computed in its passes."""
