"""Convert model folders with llama.cpp's own converter: `python -m real.convert CONVERTER FOLDER...`.

Each folder gets a file `model.gguf` in fp32, or `error.txt`. It runs in a process of its own, because the converter
comes with another gguf package than ours reads files with.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import MethodType
from typing import Any


def convert(folder: Path) -> None:
    """Convert a folder; its vocabulary becomes one of bytes, because random models have none."""
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    def write_vocabulary(self: Any) -> None:
        out, count = self.gguf_writer, self.hparams["vocab_size"]
        out.add_tokenizer_model("llama")
        out.add_token_list([f"<0x{index:02X}>" for index in range(count)])
        out.add_token_scores([0.0] * count)
        out.add_token_types([gguf.TokenType.BYTE] * count)

    options = json.loads((folder / "convert.json").read_text("utf-8"))
    read = ModelBase.load_hparams(folder, is_mistral_format=False)
    found = get_model_class(options.pop("architecture", None) or get_model_architecture(read, ModelType.TEXT))
    if options.pop("as_written", False):
        # transformers adds fields that a release does not have, from which this converter concludes something.
        options["hparams"] = json.loads((folder / "config.json").read_text("utf-8"))
    if (sections := options.pop("mrope_section", None)) is not None:
        read["rope_parameters"]["mrope_section"] = sections
        options["hparams"] = read
    # Layers that predict further tokens are not in the random models.
    changes = {"set_vocab": write_vocabulary, "model_arch": found.model_arch, "no_mtp": True}
    if options.pop("older", False):
        changes |= {"modify_tensors": _modify_as_before(found), "set_gguf_parameters": _set_as_before(found)}
    made = type(found.__name__, (found,), changes)
    converter = made(folder, gguf.LlamaFileType.ALL_F32, folder / "model.gguf", eager=True, **options)
    if hasattr(converter, "impl"):  # One class chooses between two.
        converter.impl.set_vocab = MethodType(write_vocabulary, converter.impl)
    converter.write()


def _modify_as_before(found: Any) -> Any:
    """Return a method that leaves projections whole that earlier converters did not cut."""

    def modify(self: Any, tensor: Any, name: str, layer: int | None) -> Any:
        if name.endswith(("kv_b_proj.weight", "in_proj_qkvz.weight")):
            yield self.map_tensor_name(name), tensor
        else:
            yield from found.modify_tensors(self, tensor, name, layer)

    return modify


def _set_as_before(found: Any) -> Any:
    """Return a method that writes the widths of heads as earlier converters did."""

    def write_keys(self: Any) -> None:
        found.set_gguf_parameters(self)
        (written,) = self.gguf_writer.kv_data
        for name in ("key_length", "value_length"):
            key = f"{self.gguf_writer.arch}.attention.{name}"
            if f"{key}_mla" in written:
                written[key] = written.pop(f"{key}_mla")

    return write_keys


def main(arguments: list[str]) -> None:
    """Convert each folder."""
    converter, *folders = arguments
    sys.path.insert(0, converter)
    logging.disable(logging.ERROR)
    for folder in map(Path, folders):
        try:
            convert(folder)
        except BaseException as error:
            (folder / "error.txt").write_text(f"{type(error).__name__}: {error}", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
