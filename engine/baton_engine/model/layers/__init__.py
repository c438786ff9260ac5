"""Building blocks of the decoder: linear maps, rotary embedding, embedding and head."""
