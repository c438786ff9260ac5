"""How quantised weights are stored in checkpoints: one `WeightFormat` for each linear layer, read from
`quantization_config`.

Owns names, shapes and dtypes of the stored tensors. Never holds a tensor: the engine's room of this name makes weights
of them. `parsing` reads the formats, `parameters` asks them for tensors.
"""
