"""Run one step of making the pocket model: `python -m plumbline_training STEP`, in the order of `STEPS`."""

import sys
from importlib import import_module

STEPS = {
    "tokenizer": "tokenizer",
    "train": "train",
    "vectors": "pictures.train_vectors",
    "tower": "pictures.train_tower",
    "eyes": "pictures.train_eyes",
    "export": "export",
    "evaluate": "evaluate",
}
"""The steps, and the module that runs each."""


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        sys.exit(f"usage: python -m plumbline_training {{{','.join(STEPS)}}} ...")
    # Import only what the step needs: training the tokenizer needs no torch.
    import_module(f"plumbline_training.{STEPS[sys.argv[1]]}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
