"""The live A/B test: traffic, ramp, guardrails, hold-back."""
