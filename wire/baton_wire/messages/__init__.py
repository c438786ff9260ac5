"""The messages of the three internal links, their shared values, and the codec between them and msgpack frames.

Owns the types and their bounds; a new message or field is a new wire version.
Never opens a socket and needs neither torch nor aiohttp.
Called by every process that sends or receives on a link.
"""
