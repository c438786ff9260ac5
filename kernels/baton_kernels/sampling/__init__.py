"""Sampling of tokens: penalties, masks, truncation, noise and log probabilities."""
