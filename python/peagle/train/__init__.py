"""Training of P-EAGLE heads. Uses the models and heads, never the engine."""
