"""`batchedmodel diff FILE`: what an edit of a live model would do, before it is applied.

`command` reads and prints, `fields` finds what was edited, `dry_run` plays the edit through with
the operator's own planning, `effects` says what follows from that, `forecast` asks the simulator.
"""
