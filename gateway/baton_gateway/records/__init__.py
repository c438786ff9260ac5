"""Records of requests: where each one's time went, without its content.

`trail` notes what happens to a request, `record_builder` turns a trail into spans that tile its time, `record_ring`
keeps the latest trails, `record_query` finds some of them.
"""
