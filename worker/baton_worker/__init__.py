"""The process shell that both workers share: configuration, gateway links, health, metrics, threads.

No decisions here.
"""
