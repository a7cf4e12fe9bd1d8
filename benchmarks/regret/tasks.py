"""The two models, the text they learn, and the loss that counts as done.

One takes few tokens in a step, one many. Few make the exchange of gradients the larger part of a step, many make
computing it: one host alone is often best for the first and seldom for the second.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model, its batch and its target."""

    name: str
    hidden_size: int
    num_layers: int
    intermediate_size: int
    sequence_length: int
    global_batch_size: int
    total_steps: int
    """Length of the run that is planned, in steps of one global batch."""
    target_loss: float
    """Nats per byte, mean over the last ``WINDOW_SEQUENCES`` sequences; reached by exact training at three quarters of
    the planned run, so that methods that need more steps can reach it as well."""

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole run."""
        return self.total_steps * self.global_batch_size * self.sequence_length

    def write_config(self, folder: Path) -> Path:
        """Write the model as a Hugging Face config.json into a folder of its name."""
        path = folder / self.name / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(
                {
                    "model_type": "llama",
                    "vocab_size": 256,
                    "hidden_size": self.hidden_size,
                    "num_hidden_layers": self.num_layers,
                    "num_attention_heads": self.hidden_size // 32,
                    "num_key_value_heads": self.hidden_size // 32,
                    "intermediate_size": self.intermediate_size,
                    "max_position_embeddings": self.sequence_length,
                    "tie_word_embeddings": False,
                }
            )
        )
        return path


WINDOW_SEQUENCES = 96
LEARNING_RATE = 3e-3
"""For every method alike, in the place of the bundle's starting value: three times as high, where these models learn
fastest. Far below that, every method that makes more updates from the same text would win by that alone."""

TASKS = (
    Task(
        name="wide",
        hidden_size=96,
        num_layers=3,
        intermediate_size=256,
        sequence_length=64,
        global_batch_size=12,
        total_steps=60,
        target_loss=2.05,
    ),
    Task(
        name="long",
        hidden_size=128,
        num_layers=2,
        intermediate_size=344,
        sequence_length=128,
        global_batch_size=32,
        total_steps=40,
        target_loss=2.25,
    ),
)


def text() -> bytes:
    """Return English prose and code as bytes: the reference texts of Python's own help, which every Python carries."""
    found = importlib.util.find_spec("pydoc_data.topics")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_bytes()
