"""What the processes of BatchedModel agree on: batching, settings, wire format, profile.

Every process imports this package and it imports none of them. It uses the standard library only,
so that the smallest image can carry it, and it does no I/O: bytes and mappings in, records out.
"""
