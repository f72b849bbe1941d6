"""`batchedmodel simulate`: how a manifest would do, before anything is bought or rolled out.

`command` reads and prints, `study` asks and concludes, `report` shows. What serves is `batches` or
`texts`, which run the simulator.
"""
