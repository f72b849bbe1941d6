"""`batchedmodel diff FILE`: what an edit of a live model would do, before it is applied.

`command` reads and prints, `fields` finds the edited fields, `dry_run` plays the edit through with
the operator's own planning, `effects` compares the results, `forecast` asks the simulator.
"""
