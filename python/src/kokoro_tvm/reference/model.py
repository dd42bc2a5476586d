"""The published model as a module that is built from a configuration alone.

What it is: kokoro's own classes put together, so that eager kokoro runs, not a copy of it.
What it is not: a loader of weights (``checkpoint``), nor the rewrite that is exported (``kokoro_tvm.export``).
"""

from __future__ import annotations

import json
import warnings
from importlib import resources

import torch
from kokoro.istftnet import Decoder
from kokoro.model import KModel
from kokoro.modules import CustomAlbert, ProsodyPredictor, TextEncoder
from transformers import AlbertConfig

from kokoro_tvm.config import PARTS, ModelConfig

REPOSITORY = "hexgrad/Kokoro-82M"
"""Where the weights are published."""


def published_config() -> ModelConfig:
    """The configuration published with Kokoro-82M v1.0, vocabulary included."""
    text = resources.files(__package__).joinpath("published_config.json").read_text(encoding="utf-8")
    return ModelConfig.from_dict(json.loads(text))


class ReferenceModel(KModel):
    """``kokoro.model.KModel`` without its hunt for files: freshly initialized weights, evaluation mode.

    ``KModel.__init__`` insists on a checkpoint and loads it with ``strict=False``, so only its body up to the loading
    is repeated here. Everything that computes is inherited.
    """

    def __init__(self, config: ModelConfig) -> None:
        torch.nn.Module.__init__(self)
        raw = config.to_dict()
        self.repo_id = REPOSITORY
        self.vocab = config.vocab
        with warnings.catch_warnings():
            # kokoro uses the old weight_norm and gives one-layer LSTMs a dropout; torch warns of both.
            warnings.simplefilter("ignore")
            self.bert = CustomAlbert(AlbertConfig(vocab_size=config.n_token, **raw["plbert"]))
            self.bert_encoder = torch.nn.Linear(config.plbert.hidden_size, config.hidden_dim)
            self.predictor = ProsodyPredictor(
                config.style_dim, config.hidden_dim, config.n_layer, config.max_dur, config.dropout
            )
            self.text_encoder = TextEncoder(
                config.hidden_dim, config.text_encoder_kernel_size, config.n_layer, config.n_token
            )
            self.decoder = Decoder(config.hidden_dim, config.style_dim, config.n_mels, **raw["istftnet"])
        self.context_length = config.plbert.max_position_embeddings
        self.eval()


def expected_shapes(config: ModelConfig) -> dict[str, dict[str, torch.Size]]:
    """Part → parameter name → shape of everything the architecture holds, without allocating it."""
    with torch.device("meta"):
        model = ReferenceModel(config)
    return {part: {k: v.shape for k, v in getattr(model, part).state_dict().items()} for part in PARTS}
