"""What callers and the cluster reach: the data port and the admin port."""
