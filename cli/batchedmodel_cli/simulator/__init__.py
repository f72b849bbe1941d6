"""A discrete-event simulator that runs the real policies against modelled devices and arrivals."""
