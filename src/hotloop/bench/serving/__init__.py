"""The load client: requests to any OpenAI endpoint, timed from outside."""
