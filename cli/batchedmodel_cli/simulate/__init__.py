"""`batchedmodel simulate`: how a manifest would do, before anything is bought or rolled out.

`command` reads and prints, `study` asks and concludes, `simulator` and `traffic` run what it asks.
"""
