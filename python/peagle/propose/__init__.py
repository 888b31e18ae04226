"""Proposers: whatever makes drafts."""
