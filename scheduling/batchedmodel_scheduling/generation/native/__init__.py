"""In front of engines of ours, which tell after each step what room they have."""
