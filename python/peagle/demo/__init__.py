"""The demo: a small target out of an ordinary package, and the head shipped for it."""
