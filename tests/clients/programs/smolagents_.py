"""Use smolagents' model for OpenAI's API, and an agent that calls tools."""

import os

from smolagents import ChatMessage, OpenAIModel, Tool

MODEL = os.environ["PLUMBLINE_MODEL"]


class Weather(Tool):
    """A tool of smolagents."""

    name = "weather"
    description = "Tell the weather of a city."
    inputs = {"city": {"type": "string", "description": "The city."}}  # noqa: RUF012 - smolagents checks this form
    output_type = "string"

    def forward(self, city: str) -> str:
        """Run the tool."""
        return f"It rains in {city}."


model = OpenAIModel(
    model_id=MODEL,
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    max_tokens=60,
)
hello = [ChatMessage(role="user", content=[{"type": "text", "text": "The weather in Paris?"}])]
assert model.generate(hello).content
print("   generate", flush=True)
assert "".join(piece.content or "" for piece in model.generate_stream(hello))
print("   generate_stream", flush=True)
called = model.generate(hello, tools_to_call_from=[Weather()])
assert called.tool_calls[0].function.name == "weather"
print("   a tool", flush=True)
