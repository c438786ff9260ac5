"""The page at `/ui/`: pools, attainment, decisions, tenants and slow requests, for people with a browser.

`page_part` is what one process knows, `page_document` merges parts into the page's data, `page_desk` asks the processes
and keeps the data for a moment, `static_files` are the page itself, and `viewer` says who sees what.
"""
