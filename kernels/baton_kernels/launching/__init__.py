"""How kernels of one stream are launched one after another."""
