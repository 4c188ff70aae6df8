"""`python -m plumbline.pocket {tokenizer,train,export,evaluate}`: the steps that make the pocket model."""

import sys

from plumbline.pocket import evaluate, export, tokenizer, train

STEPS = {"tokenizer": tokenizer.main, "train": train.main, "export": export.main, "evaluate": evaluate.main}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        sys.exit(f"usage: python -m plumbline.pocket {{{','.join(STEPS)}}} ...")
    STEPS[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    main()
