"""KV hand-over between prefill and decode workers: messages, protocol machines, layout, landing, transports."""
