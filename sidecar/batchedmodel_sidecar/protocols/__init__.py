"""The public protocols, one module each: body → `Call`, `Answer` → body, error → body.

An adapter knows its protocol and the model's description; it knows nothing of queues.
"""
