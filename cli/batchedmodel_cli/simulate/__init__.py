"""`batchedmodel simulate`: how a manifest would do, before anything is bought or rolled out.

`command` reads and prints, `study` decides what is asked and what follows, and only `simulator`
knows the simulator, which it imports when the first question is put.
"""
