"""Recorded drafts of another engine, and a plain reference that reproduces them."""
