"""Which models' pods another chart's images would replace."""
