"""`baton explain`: where requests lost their time.

`record_sources` asks gateways for records, `story` writes them for people, `perfetto` for trace viewers.
"""
