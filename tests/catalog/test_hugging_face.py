from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.catalog.families import FAMILIES
from stratadvisor.catalog.hugging_face import MAX_CONFIG_BYTES, read_config, shape_from_config
from stratadvisor.errors import ModelError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}


def test_a_missing_key_value_head_count_means_as_many_as_query_heads() -> None:
    shape = shape_from_config(LLAMA, "m")
    assert shape.num_key_value_heads == 32
    assert shape.head_dim == 128
    assert shape.num_parameters == 6_738_415_616


def test_the_text_part_of_a_multimodal_model_is_used_and_said() -> None:
    # google/gemma-3-4b-pt omits heads, head_dim and vocabulary in text_config: the class's defaults hold
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "model_type": "gemma3_text"}
    shape = shape_from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}}, "g")
    assert (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim) == (8, 4, 256)
    assert shape.vocab_size == 262208
    assert "text part" in shape.source


def test_gpt2_names_and_the_default_mlp_width() -> None:
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    shape = shape_from_config(config, "gpt2")
    assert shape.ffn_hidden_size == 4 * 768
    assert shape.num_parameters == 124_439_808
    assert shape.learned_positions
    assert shape.max_sequence_length == 1024


def test_a_head_size_of_its_own_is_kept() -> None:
    shape = shape_from_config({**LLAMA, "head_dim": 64}, "m")
    assert shape.attention_width == 32 * 64


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ModelError, match=field):
        shape_from_config({k: v for k, v in LLAMA.items() if k != field}, "m")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": 4096.5}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": -4096}, "hidden_size"),
        ({"hidden_size": 10**12}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": 33}, "33"),
        ({"num_key_value_heads": 5}, "5 key-value"),
        ({"model_type": "lama"}, "llama"),
        ({"model_type": None}, "model_type"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": "deepseek_v3"}, "latent"),
        ({"model_type": "t5"}, "encoder and a decoder"),
        ({"text_config": 3}, "text_config"),
    ],
)
def test_a_wrong_field_gives_one_sentence_that_names_it(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ModelError, match=word) as caught:
        shape_from_config({**LLAMA, **change}, "m")
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_more_experts_per_token_than_experts_is_refused() -> None:
    config = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}
    with pytest.raises(ModelError, match="only 4 experts"):
        shape_from_config(config, "m")


def test_a_folder_or_a_file_can_be_given(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_config(folder) == read_config(folder / "config.json")
    assert read_config(folder).name == "my-model"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "list"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"[" * 200_000, "JSON"),
        (b'{"model_type": "llama", "hidden_size": 1' + b"0" * 5000 + b"}", "JSON"),
        (b" " * (MAX_CONFIG_BYTES + 1), "larger"),
    ],
)
def test_a_file_that_cannot_be_used_gives_a_sentence(tmp_path: Path, content: bytes, word: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=word) as caught:
        read_config(path)
    assert len(caught.value.message) < 500 + len(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        read_config(tmp_path / "nothing.json")


_VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers()))
_KEYS = sorted(
    {*LLAMA, "head_dim", "num_key_value_heads", "num_local_experts", "num_experts", "num_experts_per_tok", "n_embd",
     "n_layer", "n_head", "moe_intermediate_size", "shared_expert_intermediate_size", "mlp_only_layers", "patch_size",
     "decoder_sparse_step", "image_size", "num_labels", "type_vocab_size", "word_embed_proj_dim", "tie_word_embeddings"}
    - {"model_type"}
)  # fmt: skip


@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=8))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_garbage_in_any_field_gives_a_shape_or_a_model_error(family: str, changes: dict[str, Any]) -> None:
    try:
        shape = shape_from_config({**LLAMA, **changes, "model_type": family}, "m")
    except ModelError:
        return
    assert 0 < shape.num_active_parameters <= shape.num_parameters
