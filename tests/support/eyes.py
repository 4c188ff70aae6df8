"""A served model that reads images, and requests with images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.loading.served_model import ServedModel
from support.models import chatml, scripted, scripted_info, served, text_chunks
from support.weights.vision import data_url, picture

TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{{- '<image>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}
{{- '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"""
RENDERER = chatml(TEMPLATE, [{"content": "<image>", "special": True}])
PLACEHOLDER = RENDERER.tokenizer.added["<image>"]
PNG = picture(4, 3)


class Eyes:
    """A served model that reads images, and the requests that reached its engine."""

    def __init__(self) -> None:
        self.seen: list[GenerateRequest] = []

        def script(request: GenerateRequest) -> Iterable[TokenChunk]:
            self.seen.append(request)
            return text_chunks(request, "seen")

        info = scripted_info(
            modalities={"image": PLACEHOLDER}, vocab_size=RENDERER.tokenizer.vocab_size, max_model_len=16_384
        )
        self.model: ServedModel = served(scripted(script, info=info), renderer=RENDERER)

    @property
    def files(self) -> list[bytes]:
        """The files of the last request."""
        media = self.seen[-1].media
        return [] if media is None else [item.data for item in media.items]


def chat(*parts: Any, **more: Any) -> dict[str, Any]:
    """A request of one message; bytes are images."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        if isinstance(part, bytes)
        else part
        for part in parts
    ]
    return {"model": "test-model", "messages": [{"role": "user", "content": content}], **more}
