"""Other APIs as translations of chats: Anthropic's Messages and OpenAI's Responses.

Owns their fields, their answers and the order of their events: pure functions from bodies to chat requests, and the
forms in which answers of chats are written.
Never generates, renders or routes. `openai_api` alone decides what a chat may ask for.
Called by the routes.
"""
