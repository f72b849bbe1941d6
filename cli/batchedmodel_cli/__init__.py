"""What a person types: `batchedmodel run` serves a manifest on this machine.

It knows the contract and starts the other processes; it imports none of them.
"""
