"""In front of engines of others: limits and costs are learnt from gauges, streams and answers."""
