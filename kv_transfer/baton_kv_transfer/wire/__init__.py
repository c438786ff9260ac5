"""What crosses between processes: message types and their msgpack encoding. Free of torch; the gateway imports it."""
