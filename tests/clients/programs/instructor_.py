"""Use instructor: typed answers in its modes."""

import os

import instructor
import openai
from pydantic import BaseModel

MODEL = os.environ["PLUMBLINE_MODEL"]


class Place(BaseModel):
    """A place."""

    city: str
    days: int


for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai.OpenAI(), mode=mode)
    found = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Where?"}],
        response_model=Place,
        max_tokens=400,
        temperature=0,
        max_retries=3,
    )
    assert isinstance(found, Place)
    print(f"   {mode.name}", flush=True)
