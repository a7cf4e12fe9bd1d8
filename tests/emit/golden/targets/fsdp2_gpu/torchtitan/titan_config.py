"""The plan as a configuration of torchtitan 0.3: ``--module titan_config --config planned``.

    TOKENIZER=folder bash launch.sh --training.steps 100
"""

import os
from functools import partial

from torch import nn
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, make_gqa_config
from torchtitan.models.llama3 import Llama3Model, parallelize_llama
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

DIM = 4096
LAYERS = 32
VOCABULARY = 32000
NORMAL = {"weight": partial(nn.init.trunc_normal_, std=0.02), "bias": nn.init.zeros_}
RESIDUAL = {"weight": partial(nn.init.trunc_normal_, std=0.02 / (2 * LAYERS) ** 0.5), "bias": nn.init.zeros_}
ONES = {"weight": nn.init.ones_}


def block():
    """Return one layer of the planned model."""
    attention = make_gqa_config(
        dim=DIM,
        n_heads=32,
        n_kv_heads=32,
        head_dim=128,
        wqkv_param_init=NORMAL,
        wo_param_init=RESIDUAL,
        inner_attention=get_attention_config("flex"),
        rope=ComplexRoPE.Config(dim=128, max_seq_len=4096, theta=10000),
        fuse_qkv=True,
    )
    return Llama3TransformerBlock.Config(
        attention_norm=RMSNorm.Config(normalized_shape=DIM, param_init=ONES),
        ffn_norm=RMSNorm.Config(normalized_shape=DIM, param_init=ONES),
        attention=attention,
        feed_forward=make_ffn_config(
            dim=DIM,
            hidden_dim=11008,
            w1_param_init=NORMAL,
            w2w3_param_init=RESIDUAL,
        ),
    )


def model():
    """Return the planned model: 6738415616 parameters."""
    return Llama3Model.Config(
        dim=DIM,
        vocab_size=VOCABULARY,
        enable_weight_tying=False,
        tok_embeddings=Embedding.Config(num_embeddings=VOCABULARY, embedding_dim=DIM, param_init=NORMAL),
        norm=RMSNorm.Config(normalized_shape=DIM, param_init=ONES),
        lm_head=Linear.Config(in_features=DIM, out_features=VOCABULARY, param_init=NORMAL),
        layers=[block() for _ in range(LAYERS)],
    )


def planned():
    """Return the whole configuration."""
    spec = ModelSpec(
        name="llama3",
        flavor="planned",
        model=model(),
        parallelize_fn=parallelize_llama,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=Llama3StateDictAdapter,
    )
    return Trainer.Config(
        model_spec=spec,
        hf_assets_path=os.environ["TOKENIZER"],
        dump_folder=os.environ["STRATADVISOR_RUN_DIR"],
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY)),
        dataloader=HuggingFaceTextDataLoader.Config(
            dataset=os.environ.get("DATASET", "c4"), dataset_path=os.environ.get("DATASET_PATH")
        ),
        optimizer=default_adamw(lr=0.00012, weight_decay=0.1),
        lr_scheduler=LRSchedulersContainer.Config(
            warmup_steps=12, decay_type="cosine", min_lr_factor=0.1
        ),
        training=TrainingConfig(
            local_batch_size=4,
            global_batch_size=128,
            seq_len=2048,
            max_norm=1.0,
            steps=5000,
            enable_cpu_offload=False,
            dtype="float32",
            mixed_precision_param="bfloat16",
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=16,
            tensor_parallel_degree=1,
            fsdp_reshard_after_forward="always",
        ),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=False),
        checkpoint=CheckpointManager.Config(enable=True, interval=1800),
        metrics=MetricsProcessor.Config(log_freq=1),
    )
