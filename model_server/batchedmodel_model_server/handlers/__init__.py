"""Handlers that come with the server, and how a name in a manifest becomes a handler."""
