"""Return the text of a prompt for `echo`, token by token if it has logprobs."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from plumbline.answer.events import Logprob
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.turn import Prompt, TextPrompt
from plumbline.port.engine import TokenLogprob

__all__ = ["echoed"]


def echoed(
    tokenizer: TextTokenizer,
    prompt: Prompt,
    ids: Sequence[int],
    entries: Sequence[TokenLogprob | None] | None,
) -> tuple[str, tuple[str | Logprob, ...] | None]:
    """Return the text of a prompt (CMP-04), without the tokens that the tokenizer has set around it.

    Args:
        tokenizer: the model's tokenizer.
        prompt: the prompt as the client sent it.
        ids: its token ids.
        entries: their logprobs, None for the first token; None as a whole if they were not requested.

    Returns:
        The text, and for each token its entry, or its text if it has no logprob; the tokens join to the text.
    """
    if entries is None and isinstance(prompt, TextPrompt):
        return prompt.text, None
    pieces = tokenizer.pieces(ids)
    if isinstance(prompt, TextPrompt) and prompt.add_special_tokens:
        before, after = tokenizer.num_around(ids)
        hidden = (*range(before), *range(len(pieces) - after, len(pieces)))
        pieces = [b"" if index in hidden else piece for index, piece in enumerate(pieces)]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(piece, final=index == len(pieces) - 1) for index, piece in enumerate(pieces)]
    if entries is None:
        return "".join(texts), None
    tokens = tuple(
        text if entry is None else _logprob(tokenizer, entry, text, piece)
        for entry, text, piece in zip(entries, texts, pieces, strict=True)
    )
    return "".join(texts), tokens


def _logprob(tokenizer: TextTokenizer, entry: TokenLogprob, text: str, raw: bytes) -> Logprob:
    return Logprob(
        token=raw.decode("utf-8", "replace"),
        token_id=entry.token_id,
        raw=raw,
        text=text,
        logprob=entry.logprob,
        top=tuple((i, tokenizer.token_text(i), tokenizer.table[i], value) for i, value in entry.top),
    )
