"""A model and its adapters behind an OpenAI-compatible URL: engine settings, the Ray Serve application, and the key in front of it.

Knows no training and no evaluation; whoever has a base URL and a key is a client.
"""
