"""`python -m plumbline.pocket STEP`: the steps that make the pocket model, `STEPS` below, in order."""

import sys
from importlib import import_module

STEPS = ("tokenizer", "train", "export", "evaluate", "to_gguf")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        sys.exit(f"usage: python -m plumbline.pocket {{{','.join(STEPS)}}} ...")
    # Only what the step needs is imported: making the tokenizer takes no torch.
    import_module(f"plumbline.pocket.{sys.argv[1]}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
