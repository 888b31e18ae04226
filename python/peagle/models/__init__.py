"""Target models: forward passes over paged KV. Nothing here knows of requests or text."""
