"""`batchedmodel diff FILE`: what an edit of a live model would do, before it is applied.

`command` reads and prints, `edits` finds the edited fields and their marks, `report` shows them.
"""
