"""Write what a GGUF file says about text as a model folder: the tokenizer and the chat template.

transformers builds the tokenizer from the file's metadata (`tokenizer.ggml.*`). The engine that runs the file compares
it with its own before it serves (`disagreement`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from plumbline.text.tokenizer import TextTokenizer, UnsupportedTokenizerError

__all__ = ["disagreement", "write_text_folder"]

SAMPLES: tuple[str, ...] = (
    "Hello, world! How are you today?",
    "I've, you'll, don't; THEY'RE (he'd) she's",
    "The 7 dwarfs paid 1234567890 coins, 3.14159 each - 50% more than in 1999.",
    " leading,  two   three    spaces and trailing  ",
    "tabs\tand\n\nnew\r\nlines \n indented\n    four\n\t\ttwice",
    "def f(x: int) -> dict[str, int]:\n    return {'a': x ** 2, \"b\": x // 3}  # done\n",
    '{"name": "get_weather", "arguments": {"city": "São Paulo", "days": [1, 2, 3], "ok": true}}',
    "Grüße aus Köln, naïve café, Übermut, smørrebrød, żółć",
    "Привет, как дела? Всё хорошо.",
    "你好,世界。今天天气怎么样?日本語のテキストです。한국어 문장",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "🙂👩‍👩‍👧‍👦🇩🇪 ±∞≠€ “quotes” — dash… ½ ² ﬁ",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org snake_case camelCase SCREAMING",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!????",
)


def write_text_folder(file: Path, folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and the chat template of a GGUF file into a folder.

    Raises:
        UnsupportedTokenizerError: transformers knows no such tokenizer; the message has the reason.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        found = PreTrainedTokenizerFast.from_pretrained(str(file.parent), gguf_file=file.name)
    except Exception as error:  # A broken file fails in many ways.
        raise UnsupportedTokenizerError(
            f"transformers cannot build the tokenizer of {file.name}: {error}"
        ) from error
    found.save_pretrained(str(folder))


def disagreement(tokenizer: TextTokenizer, tokenize: Callable[[str], list[int]]) -> str | None:
    """Return a text that two tokenizers encode differently, or None.

    Args:
        tokenizer: ours.
        tokenize: the engine's, without special tokens.
    """
    return next((text for text in SAMPLES if tokenizer.encode_text(text) != tokenize(text)), None)
