"""Evaluate the exported folder on held-out cases with transformers' greedy decoding.

Names, parameters, values, words and number pairs come from the half of the split that training does not use.
The figures go to `evaluation.json` and into the table of the model card.
"""

import argparse
import json
import random
import re
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from plumbline.pocket import MODEL_DIR
from plumbline_training import tokenizer
from plumbline_training.pictures import evaluate as pictures
from plumbline_training.texts import corpus
from plumbline_training.texts.long_conversation import lengthened
from plumbline_training.texts.sample import Sample
from plumbline_training.texts.skills import SKILLS
from plumbline_training.texts.words import Lexicon

# The goals of the model; the other rows are informative.
TARGETS: dict[str, float | None] = {
    "instruction": 0.90,
    "json": None,
    "conversation": None,
    "tool_name": 0.98,
    "tool_arguments": 0.90,
    "parallel": None,
    "tool_result": 0.90,
    "no_tool": None,
    "thinking_switch": 0.98,
    "long_2000": None,
    "long_4000": None,
    "long_8000": None,
    "long_15000": None,
    "long_20000": None,
}
LABELS: dict[str, str] = {
    "instruction": "Instructions, whole answer right",
    "json": "JSON answers, equal value",
    "conversation": "Conversation, whole answer right",
    "tool_name": "Tool name right, schemas never seen",
    "tool_arguments": "All arguments exact",
    "parallel": "Parallel calls, all exact",
    "tool_result": "Answer holds every value of the tool result",
    "no_tool": "Answers without a call when no tool is needed",
    "thinking_switch": "Thinking switch obeyed",
    "long_2000": "Answers at the end of 2,000 tokens",
    "long_4000": "Answers at the end of 4,000 tokens",
    "long_8000": "Answers at the end of 8,000 tokens",
    "long_15000": "Answers at the end of 15,000 tokens",
    "long_20000": "Answers at the end of 20,000 tokens",
}
LONG = (2000, 4000, 8000, 15000, 20000)
"""Tokens of the prompts of the long rows: instructions, talk, tool calls and recalls in turn."""
BEGIN_CARD, END_CARD = "<!-- evaluation: begin -->", "<!-- evaluation: end -->"


@dataclass
class Reply:
    """The parsed answer of the model."""

    thought: str | None
    content: str
    calls: list[dict[str, Any]]
    finished: bool


def take_apart(text: str) -> Reply:
    finished = "<|im_end|>" in text
    text = text.split("<|im_end|>")[0]
    thought = None
    if text.startswith("<think>") and "</think>" in text:
        thought, _, text = text.removeprefix("<think>").partition("</think>")
    calls: list[dict[str, Any]] = []
    for body in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.DOTALL):
        try:
            call = json.loads(body)
        except ValueError:
            call = None
        calls.append(call if isinstance(call, dict) else {})
    content = re.sub(r"<tool_call>.*?</tool_call>\n?", "", text, flags=re.DOTALL).strip()
    return Reply(thought, content, calls, finished)


def cases(count: int, seed: int, long_count: int = 0) -> list[tuple[str, Sample]]:
    """Return `count` held-out samples per row, or `long_count` per long row.

    Instructions are spread evenly over the skills.
    """
    lexicon = Lexicon(random.Random(seed), "eval")
    makers = {
        "json": corpus.json_answer,
        "conversation": corpus.talk,
        "tool_name": corpus.tool_call,
        "parallel": corpus.parallel_call,
        "tool_result": corpus.tool_result,
        "no_tool": corpus.no_tool,
    }
    found = [
        ("instruction", corpus.instruction(lexicon, skill))
        for skill in SKILLS
        for _ in range(-(-count // len(SKILLS)))
    ]
    found += [(row, make(lexicon)) for row, make in makers.items() for _ in range(count)]
    for _, sample in found:
        sample.thinking = lexicon.chance(0.5)
    return found + _long_cases(lexicon, long_count)


def _long_cases(lexicon: Lexicon, count: int) -> list[tuple[str, Sample]]:
    makers = (corpus.instruction, corpus.talk, corpus.tool_call, lambda lx: corpus.long_chat(lx, 1))
    tok = tokenizer.load()
    return [
        (f"long_{tokens}", lengthened(lexicon, tok, makers[number % len(makers)](lexicon), tokens))
        for tokens in LONG
        for number in range(count)
    ]


def _same_calls(reply: Reply, sample: Sample) -> bool:
    wanted = [{"name": c.name, "arguments": c.arguments} for c in sample.calls]
    return json.dumps(reply.calls, sort_keys=True) == json.dumps(wanted, sort_keys=True)


def judge(row: str, sample: Sample, reply: Reply) -> dict[str, bool]:
    """Return the rows that this case counts for, and whether it passes."""
    verdict = {
        "thinking_switch": (bool(reply.thought and reply.thought.strip())) == sample.thinking
        and "<think>" not in reply.content
    }
    if row.startswith("long_") and sample.calls:
        verdict[row] = _same_calls(reply, sample)
    elif row == "tool_name":
        verdict["tool_name"] = [c.get("name") for c in reply.calls] == [c.name for c in sample.calls]
        verdict["tool_arguments"] = _same_calls(reply, sample)
    elif row == "parallel":
        verdict[row] = _same_calls(reply, sample)
    elif row == "tool_result":
        verdict[row] = not reply.calls and all(v in reply.content for v in sample.must_contain)
    elif row == "json":
        try:
            verdict[row] = json.loads(reply.content) == json.loads(sample.answer)
        except ValueError:
            verdict[row] = False
    elif row == "no_tool":
        verdict[row] = not reply.calls and bool(reply.content)
    else:
        verdict[row] = not reply.calls and reply.content == sample.answer
    return verdict


class FolderRunner:
    """Generate with the folder, loaded with transformers."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    def prompt(self, sample: Sample) -> str:
        text: str = self.tokenizer.apply_chat_template(
            sample.messages,
            tools=sample.tools or None,
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=sample.thinking,
        )
        return text

    @torch.inference_mode()
    def replies(self, samples: list[Sample], batch: int = 48) -> list[Reply]:
        prompts = [self.prompt(s) for s in samples]
        order = sorted(
            range(len(prompts)),
            key=lambda i: (len(prompts[i]) // 4000, len(samples[i].completion()), len(prompts[i])),
        )
        out: dict[int, Reply] = {}
        while order:
            # Padding costs attention a mask of the square of the length, so long prompts go one by one.
            short = list(takewhile(lambda i: len(prompts[i]) < 4000, order[:batch]))
            size = max(1, len(short))
            rows, order = order[:size], order[size:]
            encoded = self.tokenizer([prompts[i] for i in rows], return_tensors="pt", padding=True)
            longest = max(len(self.tokenizer.encode(samples[i].completion())) for i in rows)
            made = self.model.generate(**encoded, do_sample=False, max_new_tokens=longest + 40)
            texts = self.tokenizer.batch_decode(
                made[:, encoded["input_ids"].shape[1] :], skip_special_tokens=False
            )
            out.update({i: take_apart(t) for i, t in zip(rows, texts, strict=True)})
        return [out[i] for i in range(len(samples))]


def evaluate(
    folder: Path, count: int, seeds: list[int], show: int = 0, long_count: int = 0
) -> dict[str, Any]:
    """Return figures by row and, for instructions, by skill, over all seeds and for each seed.

    A row of a few hundred cases varies by several points between seeds.
    """
    runner = FolderRunner(folder)
    rows: dict[str, list[bool]] = defaultdict(list)
    skills: dict[str, list[bool]] = defaultdict(list)
    shown: dict[str, int] = defaultdict(int)
    by_seed: dict[str, dict[str, str]] = {}
    for seed in seeds:
        chosen = cases(count, seed, long_count)
        before = {name: (len(passed), sum(passed)) for name, passed in rows.items()}
        for (row, sample), reply in zip(chosen, runner.replies([s for _, s in chosen]), strict=True):
            verdict = judge(row, sample, reply)
            for name, passed in verdict.items():
                rows[name].append(passed)
            if row == "instruction":
                skills[sample.skill].append(verdict[row])
            if not all(verdict.values()) and shown[sample.skill] < show:
                shown[sample.skill] += 1
                print(
                    f"--- {sample.skill} {[k for k, v in verdict.items() if not v]}\n  asked: "
                    f"{sample.messages[-1]['content']!r}\n  wanted: {sample.completion()!r}\n  got: {reply}"
                )
        by_seed[str(seed)] = {
            name: f"{sum(rows[name]) - passed}/{len(rows[name]) - number}"
            for name in TARGETS
            for number, passed in [before.get(name, (0, 0))]
        }
    return {
        "seeds": seeds,
        "rows": {
            name: {"cases": len(rows[name]), "passed": sum(rows[name]), "target": target}
            for name, target in TARGETS.items()
            if rows[name]
        },
        "skills": {name: {"cases": len(v), "passed": sum(v)} for name, v in skills.items()},
        "by_seed": by_seed,
    }


def percent(row: dict[str, Any]) -> str:
    return f"{100 * row['passed'] / row['cases']:.1f} %"


def _target(row: dict[str, Any]) -> str:
    return "–" if row["target"] is None else f"{100 * row['target']:.0f} %"


def card_table(result: dict[str, Any]) -> str:
    """Return the table of the model card from the figures."""
    lines = ["| Held-out test | Cases | Reached | Target |", "| --- | ---: | ---: | ---: |"]
    for labels, rows in ((LABELS, result["rows"]), (pictures.LABELS, result.get("pictures", {}))):
        lines += [
            f"| {labels[name]} | {row['cases']} | {percent(row)} | {_target(row)} |"
            for name, row in rows.items()
        ]
    lines += [
        "",
        "Instructions by skill: "
        + ", ".join(f"{name} {percent(row)}" for name, row in result["skills"].items())
        + ".",
        "",
        "Tool names and arguments by seed: "
        + ", ".join(
            f"{seed}: {one['tool_name']} and {one['tool_arguments']}"
            for seed, one in result["by_seed"].items()
        )
        + ".",
    ]
    return "\n".join(lines)


def write_card(folder: Path, result: dict[str, Any]) -> None:
    (folder / "evaluation.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN_CARD)
    _, _, after = rest.partition(END_CARD)
    card.write_text(f"{before}{BEGIN_CARD}\n{card_table(result)}\n{END_CARD}{after}", encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m plumbline_training evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument(
        "--cases", type=int, default=300, help="cases in each row, of each seed; 0 keeps the figures of texts"
    )
    parser.add_argument("--picture-cases", type=int, default=100, help="cases in each row of pictures")
    parser.add_argument("--long-cases", type=int, default=0, help="cases in each long row, of each seed")
    parser.add_argument(
        "--seeds",
        type=lambda text: [int(seed) for seed in text.split(",")],
        default=[2026],
        help="comma-separated; each has its own cases",
    )
    parser.add_argument("--show", type=int, default=0, help="failures to print for each skill")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--write", action="store_true", help="write evaluation.json and the table of the card"
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    start = time.time()
    if args.cases:
        result = evaluate(args.model, args.cases, args.seeds, args.show, args.long_cases)
    else:
        result = json.loads((args.model / "evaluation.json").read_text(encoding="utf-8"))
    if args.picture_cases:
        result["pictures"] = pictures.evaluate(args.model, args.picture_cases, args.seeds, args.show)
        result["picture_seeds"] = args.seeds
    print(card_table(result))
    print(f"{time.time() - start:.0f} s")
    if args.write:
        write_card(args.model, result)


if __name__ == "__main__":
    main()
