"""Other APIs as translations of chat: Anthropic's Messages and OpenAI's Responses.

Owns their fields, their answers and the order of their events: pure functions from bodies to chat requests, and forms
in which chat's answers are written.
Never generates, renders or routes: what a chat may ask for is decided by `http_api`, and by nobody twice.
Called by the routes.
"""
