"""Names, labels and objects of a cluster."""
