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


def test_bloom_calls_its_width_n_embed() -> None:
    # bigscience/bloom-560m: config.json has n_embed and no hidden_size; 559214592 parameters by its model card
    config = {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880}
    shape = shape_from_config(config, "bloom-560m")
    assert shape.hidden_size == 1024
    assert shape.num_parameters == 559_214_592


def test_a_variant_that_the_count_does_not_know_is_refused_by_its_field() -> None:
    config = {**LLAMA, "model_type": "phi"}
    assert shape_from_config({**config, "qk_layernorm": False}, "m").num_layers == 32
    with pytest.raises(ModelError, match="m: qk_layernorm = True is not supported for phi models") as caught:
        shape_from_config({**config, "qk_layernorm": True}, "m")
    assert "--model-size" in caught.value.hint


def test_text_parts_lie_in_each_other_a_few_times_at_most() -> None:
    # Qwen-Omni: thinker_config holds the text_config
    omni = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {**LLAMA}}}
    assert shape_from_config(omni, "m").num_parameters == 6_738_415_616
    deep: dict[str, Any] = LLAMA
    for _ in range(10):
        deep = {"text_config": deep}
    with pytest.raises(ModelError, match="m: text_config has no model_type"):
        shape_from_config(deep, "m")


@pytest.mark.parametrize("inner", [None, 3, ["llama"]])
def test_a_text_part_of_an_unknown_type_is_named(inner: object) -> None:
    text = {k: v for k, v in LLAMA.items() if k != "model_type"} | {"model_type": inner}
    with pytest.raises(ModelError, match="m: text_config has no model_type"):
        shape_from_config({"model_type": "something-new", "text_config": text}, "m")


def test_a_vision_tower_counts_with_its_own_ratio() -> None:
    def tower(**more: object) -> int:
        vision = {"hidden_size": 64, "num_hidden_layers": 2, "patch_size": 4, **more}
        text = {**LLAMA, "model_type": "llama"}
        return shape_from_config(
            {"model_type": "llava", "text_config": text, "vision_config": vision}, "m"
        ).num_vision_parameters

    def expected(inner: int) -> int:  # arXiv:2010.11929
        return 2 * (4 * 64 * 64 + 2 * 64 * inner + 9 * 64 + inner) + 3 * 4 * 4 * 64

    assert tower() == expected(4 * 64)
    assert tower(mlp_ratio=2) == expected(2 * 64)
    assert tower(mlp_ratio=2, intermediate_size=100) == expected(100)
    for odd in (True, "2", 0, -1, 1000):
        assert tower(mlp_ratio=odd) == expected(4 * 64)
    assert shape_from_config({"model_type": "llava", "text_config": LLAMA}, "m").num_vision_parameters == 0


def test_a_config_that_the_system_will_not_read_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.symlink_to("/proc/self/mem")  # a file whose first byte is not mapped
    with pytest.raises(ModelError, match=r"config\.json cannot be read: "):
        read_config(path)


def test_a_field_of_the_wrong_kind_is_no_traceback() -> None:
    mixture = {**LLAMA, "model_type": "qwen3_moe", "moe_intermediate_size": 768, "num_experts": 8}
    mixture["num_experts_per_tok"] = 2
    assert shape_from_config(mixture, "m").num_experts == 8
    for key, wrong in (("mlp_only_layers", 3), ("decoder_sparse_step", "2")):
        with pytest.raises(ModelError, match="m: a field has the wrong kind of value"):
            shape_from_config({**mixture, key: wrong}, "m")
