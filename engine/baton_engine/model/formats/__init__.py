"""How quantised weights stand in checkpoints: one `WeightFormat` for each linear layer, read from
`quantization_config`.

Owns names, shapes and dtypes of the stored tensors, and what they mean. Never multiplies and knows no device's own
layout. `model_config` reads the formats, `parameters` asks them for tensors, `assembly` for the weights in them.
"""
