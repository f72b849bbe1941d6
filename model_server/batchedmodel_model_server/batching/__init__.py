"""Items of a batch: checked, put together, cut apart."""
