"""The ports on which the autoscaler is asked, bounded in what callers may take of it."""
