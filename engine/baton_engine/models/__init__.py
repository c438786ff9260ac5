"""The decoder implementation and the configurations of the model families it serves."""
