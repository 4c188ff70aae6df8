"""Use lm-eval's models for completions: log-likelihoods and texts, with a local and with the server's tokenizer."""

import os
import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

MODEL = os.environ["PLUMBLINE_MODEL"]
BASE = os.environ["OPENAI_BASE_URL"]
TOKENIZER = os.environ["PLUMBLINE_TOKENIZER"]
KEY = os.environ["OPENAI_API_KEY"]
backends = {
    "remote": {"tokenizer_backend": "remote", "auth_token": KEY},
    "huggingface": {"tokenizer": TOKENIZER},
}
found = {}
for name, options in backends.items():
    model = LocalCompletionsAPI(
        model=MODEL, base_url=f"{BASE}/completions", max_length=2048, num_concurrent=1, **options
    )
    asked = [
        Instance("loglikelihood", {}, ("The cat sat on the", text), number)
        for number, text in enumerate((" mat", " xylophone"))
    ]
    scores = model.loglikelihood(asked)
    assert all(score < 0 for score, _ in scores)
    until = Instance("generate_until", {}, ("Once", {"until": ["\n"], "max_gen_toks": 8}), 0)
    assert len(model.generate_until([until])) == 1
    found[name] = [round(score, 3) for score, _ in scores]
    print(f"   local-completions with the {name} tokenizer", flush=True)
assert len(set(map(tuple, found.values()))) == 1, found
sys.exit(0)
