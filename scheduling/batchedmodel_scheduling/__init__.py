"""Which requests share the next forward pass, and when it starts.

Pure: no clock, no loop, no I/O. The sidecar drives these objects with real time, a simulator with
virtual time. Both call the same five methods (`batching.decisions.Policy`).
"""
