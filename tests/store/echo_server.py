"""Serve a scripted model that answers with the numbers of the requests in its prompt: `echo_server.py PORT STORE`.

A user writes "op17"; the answer "seen 3 17" shows that its context had the requests 3 and 17, in this order.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.engines.scripted import ScriptedEngine
from plumbline.pocket import MODEL_DIR
from plumbline.port.engine import EngineInfo, GenerateRequest, TokenChunk
from plumbline.server.loading.catalog import only
from plumbline.server.loading.served_model import load
from plumbline.server.loading.storage import build_store
from plumbline.server.settings import Settings
from plumbline.server.start.listener import listener

TOKENIZER = TextTokenizer.from_folder(MODEL_DIR)
EOS = TOKENIZER.added["<|im_end|>"]


def seen(request: GenerateRequest) -> Iterator[TokenChunk]:
    """The numbers in the prompt, a token at a time."""
    numbers = re.findall(r"op(\d+)", TOKENIZER.decode(request.prompt_token_ids))
    for token in TOKENIZER.encode_text("seen " + " ".join(numbers)):
        yield TokenChunk(token_ids=(token,))
    yield TokenChunk(token_ids=(EOS,), finish_reason="stop")


def main(port: int, store: str) -> None:
    """Serve until a signal."""
    info = EngineInfo(
        name="scripted",
        model="m",
        vocab_size=TOKENIZER.vocab_size,
        max_model_len=16_384,
        eos_token_ids=frozenset({EOS}),
    )
    settings = Settings(port=port, store=store, served_model_names=("m",), shutdown_timeout=1.0, page=False)
    model = load(settings, ScriptedEngine(info, seen, delay=0.002))
    listener(only(model), settings, build_store(settings), host="127.0.0.1", port=port).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
