"""The HTTP server for clients: paths, bodies, API keys, lookups, and what one client may take of the process.

Owns connections to clients: which paths exist, how bodies are read, in what order requests begin, how answers leave.
Never decides what a field means (`openai_api`, `apis`) or where a request runs (`requests`).
Called by the gateway's server; hands typed requests to `requests`.
"""
