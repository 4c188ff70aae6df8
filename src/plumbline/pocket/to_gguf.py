"""Write the folder as one GGUF file for llama.cpp; needs the `gguf` package, and llama-cpp-python to quantise it.

llama.cpp's own converter identifies a tokenizer by a hash of its output and refuses unknown vocabularies, so this
script names the pre-tokenizer (Qwen2's) directly.
"""

import argparse
import ctypes
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from plumbline.pocket import MODEL_DIR
from plumbline.pocket.folder import text_config, text_weights

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a tensor."""
    inner = name.removeprefix("model.").removesuffix(".weight")
    if inner in ("embed_tokens", "norm"):
        return {"embed_tokens": "token_embd", "norm": "output_norm"}[inner] + ".weight"
    _, number, rest = inner.split(".", 2)
    return f"blk.{number}.{LAYER_NAMES[rest]}.weight"


def write(folder: Path, path: Path, name: str = "Plumbline pocket model") -> None:
    import gguf

    config = text_config(folder)
    tokenizer: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    out = gguf.GGUFWriter(path, "qwen3")
    out.add_name(name)
    out.add_license("apache-2.0")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    out.add_vocab_size(config["vocab_size"])
    out.add_file_type(gguf.LlamaFileType.ALL_F32)

    tokens: dict[int, tuple[str, int]] = {
        i: (token, gguf.TokenType.NORMAL) for token, i in tokenizer["model"]["vocab"].items()
    }
    for added in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]] = (added["content"], kind)
    # llama.cpp wants a token for each row of the embeddings, which may be more than the tokenizer has.
    for i in range(config["vocab_size"]):
        tokens.setdefault(i, (f"[PAD{i}]", gguf.TokenType.UNUSED))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list([tokens[i][0] for i in range(len(tokens))])
    out.add_token_types([tokens[i][1] for i in range(len(tokens))])
    out.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    out.add_eos_token_id(config["eos_token_id"])
    out.add_pad_token_id(config["pad_token_id"])
    out.add_add_bos_token(False)
    out.add_chat_template((folder / "chat_template.jinja").read_text(encoding="utf-8"))

    for name, tensor in text_weights(folder).items():
        out.add_tensor(gguf_name(name), tensor.to(torch.float32).numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def quantise(source: Path, target: Path, kind: str) -> None:
    """Quantise a GGUF file with llama.cpp; `kind` is one of its types, such as Q8_0, Q4_K_M or IQ4_NL.

    Raises:
        ValueError: llama.cpp has no such type, or it failed.
    """
    import llama_cpp

    number = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}", None)
    if number is None:
        raise ValueError(f"llama.cpp has no type {kind!r}")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = number
    params.nthread = 1
    status = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    if status != 0:
        raise ValueError(f"llama.cpp could not quantise {source.name}: status {status}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m plumbline.pocket.to_gguf", description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--to", type=Path, default=Path("pocket.gguf"))
    parser.add_argument("--type", default="F32", help="F32, or a quantised type such as Q8_0 or Q4_K_M")
    args = parser.parse_args(argv)
    if args.type == "F32":
        write(args.model, args.to)
        return
    with TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.gguf"
        write(args.model, whole)
        quantise(whole, args.to, args.type)


if __name__ == "__main__":
    main()
