"""What callers and the cluster reach: the data port and the admin port, and HTTP as they speak it.

Put together by the service; nothing else of the sidecar knows them.
"""
