"""The gateway: owns text. OpenAI API, chat templates, (de)tokenising, admission, routing, retries, migration."""
