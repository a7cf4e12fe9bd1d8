"""Numbers of the time model that come from measurement or fitting, in one place, each with what it stands for.

``(fit)`` marks those adjusted on published step times (``benchmarks/accuracy.py`` names the sources that were used and
those left out); the rest are physical or come from the cited source.
"""

from __future__ import annotations

# --- matrix products on a GPU --------------------------------------------------------------------------------------
MATMUL_EFFICIENCY: dict[str, dict[str, float]] = {
    "pascal": {"half": 0.55, "fp32": 0.85},
    "volta": {"half": 0.65, "fp32": 0.85},
    "turing": {"half": 0.60, "fp32": 0.80},
    "ampere": {"half": 0.755, "fp32": 0.80, "tf32": 0.65},
    "ampere graphics": {"half": 0.78, "fp32": 0.80, "tf32": 0.65},
    "ada": {"half": 0.85, "fp32": 0.75, "tf32": 0.75},
    "hopper": {"half": 0.753, "fp32": 0.80, "tf32": 0.65},
    "blackwell": {"half": 0.68, "fp32": 0.75, "tf32": 0.65},
    "cdna": {"half": 0.45, "fp32": 0.70},
    "cdna2": {"half": 0.45, "fp32": 0.70},
    "cdna3": {"half": 0.45, "fp32": 0.60},
    "cdna4": {"half": 0.45, "fp32": 0.60},
    "unknown": {"half": 0.55, "fp32": 0.70},
}
"""Share of the dense peak that large products reach in training, clocks under load included (fit)."""

ROW_MAJOR_FORMATS: dict[str, frozenset[str]] = {"hopper": frozenset({"tf32"})}
ROW_MAJOR_SHARE = 0.63
"""Hopper's new matrix instructions take TF32 operands along rows only (PTX ISA, wgmma: transposing is for 16 bit). Only
a forward product has its operands so; the others run on Ampere's instructions, which reach 63 % of an H100's peak on
average (arXiv:2402.13499)."""

GRAPHICS_WATTS_PER_FLOPS: dict[str, float] = {"ampere": 350 / 1.423e14, "ada": 450 / 3.303e14}
"""What products with fp32 accumulation draw at the full rate and clock of the graphics chips (GA10x, AD10x): taken to
be the power of the fastest GeForce card for the full rate of its units, half of which GeForce cards lock away. So these
never meet their limit, while workstation and server cards, with the same chip and less power, run slower."""
HALF_DEPTH = 120.0
HALF_DEPTH_FLOPS, HALF_DEPTH_EXPONENT = 3.12e14, 0.5
"""Depth of a product at which it reaches half its rate on an A100 (fit): filling and emptying the pipeline of each tile
takes a time, not a depth, so faster units lose more. With multiprocessors of equal speed the exponent would be 0, with
equally many it would be 1."""
HALF_OUTPUTS = 100_000.0
"""Outputs at which a product reaches half its rate: less than one tile for every multiprocessor, and a last round of
tiles that leaves some idle (fit; libraries choose smaller tiles and divide the depth where there are few)."""

ALIGNED_ELEMENTS = 64
MISALIGNED_SHARE = 0.64
"""Rate of products whose widths are no multiple of 64 elements (128 bytes, a cache line) (fit)."""

WEIGHT_GRADIENT_SLOWDOWN = 1.05
"""Weight gradients accumulate in fp32: 3 to 8 % slower than forward on large shapes (SimuMax's tables, A100)."""

EAGER_PRODUCT_SHARE: dict[str, float] = {"hopper": 0.88, "blackwell": 0.88}
"""Products of a PyTorch program against those of a Megatron recipe (aligned shapes, tuned library calls, CUDA graphs),
where the matrix units are fast enough to show it (fit on torchtitan's H100 runs, in 16 and 8 bit)."""

FP8_EFFICIENCY_SHARE: dict[str, float] = {"ada": 0.9, "hopper": 0.883, "blackwell": 0.985, "unknown": 0.9}
"""What fp8 products reach of their peak against what 16-bit ones reach of theirs: best shapes of a search, 1403 of 1979
against 795 of 989 TFLOP/s on an H100, 3433 of 4500 against 1745 of 2250 on a B200 (ml-engineering's MAMF tables)."""

SUSTAINED_SHARE = 0.93
"""A training step's products against the best of a short benchmark: heat, power, other shapes (fit)."""

POWER_EXPONENT = 0.7
"""Rate of products against the power limit: an H100 at 500 of 700 W reaches 0.8 (fit on torchtitan's H100 runs, which
hardly tell it from what PyTorch's products lose)."""

# --- attention -----------------------------------------------------------------------------------------------------
FLASH1_SHARES = (0.49, 0.415)
"""Rate of the first FlashAttention, forward and backward, against large products on the same device (fit): 37 and 31 %
of an A100's peak; the paper of its successor says 25 to 40 % (arXiv:2307.08691, abstract)."""
FLASH2_SHARES = (0.86, 0.74)
FLASH2_HALF_LENGTH = 450.0
"""FlashAttention-2: 70 and 60 % of an A100's peak on long sequences, half of it at this length, since there are fewer
blocks than units (read off arXiv:2307.08691, figures 5 and 6: causal, heads of 128), less what training does not
sustain."""
FLASH2_ARCHITECTURES = frozenset({"ampere", "ada", "hopper", "blackwell"})
"""Those it runs on; older ones have PyTorch's memory-efficient kernels, which count as the first version."""
CUDNN_SHARES = (0.49, 0.415)
"""What Megatron recipes use on Hopper and later (fit)."""
OLDER_ATTENTION_SHARE: dict[str, tuple[float, float]] = {"hopper": (0.5, 0.45), "blackwell": (0.5, 0.45)}
"""What FlashAttention 1 and 2 keep of that on devices whose matrix instructions they do not know: of an
H100's peak version 2 reaches 35 % in a benchmark (arXiv:2407.08608, section 1); in training a little less (fit on
torchtitan's runs up to sequences of 32768)."""
FLASH_FULL_HEAD = 128.0
FLASH_HEAD_EXPONENT = 0.11
"""Narrow heads feed the matrix units less well: rate falls as (head_dim / 128) ** exponent (fit)."""
FLASH_BACKWARD_FLOPS = 2.5
"""Backward recomputes the scores: five products for two (FlashAttention, arXiv:2205.14135, section 3)."""
UNFUSED_PASSES, UNFUSED_EAGER_PASSES = 5.8, 11.0
"""Plain attention: batched products whose depth is that of a head, and passes over the S x S scores: with a fused
masked softmax (fit; Megatron's takes 16 bit only), and one operation after another (counted: scale, mask, softmax and
dropout read and write, the mask is read, the products write and read)."""
DROPOUT_PASSES = 2.5
"""Of these, dropout: the scores read and written, and a byte of its mask."""
UNFUSED_MEGATRON_PASSES = (8.5, 19.5)
"""Megatron's own torch path, forward and backward (counted): the product scales, and the mask is filled in place into a
view of the scores, whose backward copies the gradient four times (PyTorch's CopySlices)."""

# --- memory-bound work ---------------------------------------------------------------------------------------------
MEMORY_BANDWIDTH_SHARE = 0.85
"""Of the published rate, as large copies reach it; a measured rate is taken whole."""
ELEMENTWISE_HIDDEN_PASSES = 12.0
ELEMENTWISE_FFN_PASSES = 2.5
"""Norms, residuals, rotary, dropout, activation of one layer: passes over T x h and T x f, compiled (cost model A4)."""
EAGER_RMS_NORM_BYTES: dict[str, float] = {"half": 36.0, "fp32": 28.0}
EAGER_ROTARY_BYTES: dict[str, float] = {"half": 20.0, "fp32": 8.0}
"""Per element, forward: an RMSNorm and a rotary embedding written in Python and in fp32, as most models bring them
(counted: cast up, square, mean, scale, cast down, weigh; cast up, turn, cast down; fp32 needs no casts)."""
EAGER_FACTOR = 2.0
"""Without torch.compile or fused kernels every operation reads and writes its operands (torchtitan: compile +16 %)."""
ELEMENTWISE_BACKWARD = 1.55
PADDED_VOCABULARY = 128
"""Megatron pads the vocabulary to a multiple of this times the tensor-parallel degree."""
CROSS_ENTROPY_BYTES_PER_LOGIT = 18.0
"""bf16 logits, their fp32 copy, log-softmax, gradient: read and written (counted from eager PyTorch)."""
AUTOCAST_FORWARD_BYTES, AUTOCAST_BACKWARD_BYTES = 6.0, 14.0
"""Per parameter and micro-batch: read fp32, write 16 bit; write a 16-bit gradient, cast it, add it to an fp32 one."""

# --- kernel launches -----------------------------------------------------------------------------------------------
KERNEL_LAUNCH_SECONDS = 1.1e-5
"""Host time per kernel from eager PyTorch (5 to 12 us; fit)."""
GRACE_DEVICES = ("GH200", "GB200", "GB300")
GRACE_SLOWNESS = 1.5
"""Python and launches on NVIDIA's Grace against the x86 hosts of other devices: GH200 stays bound by its processor up
to batches four times as large (arXiv:2504.11750); the figure is that of the launch-bound layers in the profile which
Sailor's repository (profiles/OPT-350/GH-96) has beside its runs."""
CPU_OPERATION_SECONDS = 15e-6
"""Dispatch, and waking the threads of one operation, on a CPU."""

# --- processors (timed with PyTorch 2.13, processor time, malloc keeping its blocks: benchmarks/cpu_terms.py) --------
CPU_SUSTAINED_SHARE = 0.97
CPU_ATTENTION_SHARE = 0.42
"""scaled_dot_product_attention against fp32 products; 16-bit inputs are no faster."""
CPU_ELEMENTWISE_FLOPS = {"fp32": 108.0, "half": 49.0}
"""Time of an element and pass of the compiled count, in FLOPs of an fp32 product: eager operations, exponentials, casts
and transposed copies cost the core more than the traffic."""
CPU_LOGIT_FLOPS = {"fp32": 120.0, "half": 155.0}
"""The same per logit, forward and backward; 16-bit logits are copied to fp32 first."""
CPU_OPTIMIZER_FACTOR = {"adamw": 0.9}
CPU_LOOPED_OPTIMIZER_FACTOR = 1.2
"""AdamW updates in one pass; the others run operation after operation."""
CPU_DEEPSPEED_OPTIMIZER_FACTOR, CPU_DEEPSPEED_BYTES_PER_PARAMETER = 3.5, 100.0
"""DeepSpeed's AdamW on a CPU runs operation after operation; and for every whole parameter and step its gradient is
copied into buckets, scaled, handed to its part, measured, and the weight copied back (ZeRO-1 of 10M and 30M against
DDP)."""
EAGER_KERNELS_PER_LAYER, COMPILED_KERNELS_PER_LAYER = 30.0, 13.0
MEGATRON_KERNELS_PER_LAYER = 57.0
"""Megatron fuses the element-wise kernels but launches the rest from Python."""
FP8_KERNELS = 4.0
"""More per layer and pass: one cast for each of the four linear layers."""
TENSOR_PARALLEL_KERNELS = 8.0
"""More per layer and pass: collectives and the copies around them."""
CHECKPOINT_HOST_SECONDS, MEGATRON_CHECKPOINT_HOST_SECONDS = 3e-4, 1e-3
"""Saving and restoring random states, detaching and running a layer again: host time per recomputed layer (fit)."""
BACKWARD_KERNELS = 1.7
KERNELS_OUTSIDE_LAYERS = 40.0
ENGINE_HOST_SECONDS_PER_LAYER = {"fsdp2": 1.3e-3, "zero3": 3.5e-3}
"""Hooks and bookkeeping of one layer and micro-batch, forward and backward, on one core that also computes (timed:
FSDP2 of torch 2.13 and DeepSpeed 0.19 against the plain model)."""
DTENSOR_HOST_SECONDS_PER_LAYER = 8.5e-3
"""The same of tensor parallelism with DTensor in eager mode, on top of FSDP2's: every operation is dispatched in Python
(processor time over a process group that moves nothing, against FSDP2 in the same run; compiling takes it away)."""
ADAPTED_LINEAR_OPERATIONS = 6.0
"""Operations on DTensors in place of one, where a linear layer has an adapter: dropout, down, scale, up and the sum."""
ENGINE_HOST_SECONDS_PER_STEP = {"ddp": 1.0e-3, "deepspeed": 5.0e-3}
"""The same per optimizer step."""
GPU_HOST_SHARE = 0.5
"""Hosts of GPUs have faster cores that do nothing else."""

# --- optimizer -----------------------------------------------------------------------------------------------------
OPTIMIZER_BYTES = {"adamw": 34.0, "adamw8bit": 20.0, "adafactor": 26.0, "sgd": 24.0, "muon": 40.0}
"""Per local parameter: gradient norm and scaling, states and weights read and written, 16-bit copy written."""
MUON_FLOPS_PER_PARAMETER_PER_WIDTH = 30.0
"""Newton-Schulz: 5 iterations of about three products of an n x h matrix with h x h: 5 * 3 * 2 * h FLOP a parameter."""
CPU_ADAM_BYTES = 30.0
CPU_ADAM_BYTES_PER_CORE_PER_SECOND = 8e9
ASSUMED_HOST_BANDWIDTH = 60e9
"""Eight channels of DDR4 shared by everything else on the node; used where it was not measured."""
ASSUMED_HOST_LINK = 12e9
ASSUMED_STORAGE = 2e9

# --- communication -------------------------------------------------------------------------------------------------
DECLARED_NETWORK_SHARE = 0.80
DECLARED_INTRA_SHARE = 0.75
"""What NCCL's ring reaches of a declared or catalog rate: 0.67 to 0.8 of NVLink in published nccl-tests runs."""
ASSUMED_INTRA_PCIE = 6e9
ASSUMED_INTER_NODE = 1.25e9 * 0.8
"""Nothing known: PCIe through the host, and 10 Gb/s Ethernet."""
LEVELS_IN_SERIES = 0.3
"""Share of the faster level of a hierarchical collective that adds to the slower one: 0 pipelined, 1 in sequence."""
LATENCY_RANKS_INTRA, LATENCY_RANKS_INTER = 8, 2
"""Ranks that an assumed latency stands for."""
NVLINK_HALF_MESSAGE_BYTES, NVLINK_RAMP_SECONDS = 20 * 2.0**20, 150e-6
"""Inside a node the rate rises with the message: at this size half of the loss that the largest ones have (published
nccl-tests sweeps over 8 A100 and 8 H200), but no more than so many seconds, which slow links hardly notice."""
RING_HALF_MESSAGE_BYTES = 2.0 * 2**20
"""A message of this size per rank reaches two thirds of the bandwidth between nodes over NCCL."""
RING_HOP_INTRA_SECONDS, RING_HOP_INTER_SECONDS = 3.4e-6, 14e-6
"""One step of NCCL's ring with its protocol for large messages (its tuning table: NVLink and network, "simple"). Gather
and scatter know no tree, so every call passes all ranks in turn."""
ZERO_BUCKET_BYTES = 1e9
"""5e8 elements of 16 bit: DeepSpeed's default buckets for ZeRO-1 and -2."""

OVERLAP_COST: dict[str, float] = {
    "ddp": 0.15,
    "fsdp2": 0.15,
    "deepspeed": 0.35,
    "megatron": 0.60,
    "megatron_overlapped": 0.15,
    "gloo": 0.90,
}
"""Share of hidden communication that still shows: kernels that share the device's units and memory; with gloo the
same cores compute and send (fit)."""
STAGED_OVERLAP_COST = 0.65
"""The same at least, where devices cannot reach each other's memory and collectives go through the host's: hardly
anything hides (fit on the two boxes of ``fsdp-qlora-24gb``)."""
COLLECTIVE_MEMORY_PASSES = 3.0
"""Passes of a device's memory over each byte that a gather or scatter brings: written on arrival, read to be handed on,
and packed or unpacked (counted). Computation beside it waits for them."""
TENSOR_PARALLEL_EXPOSED, TENSOR_PARALLEL_OVERLAPPED = 1.0, 0.20
"""Share of tensor-parallel transfers that shows: plain Megatron, and recipes that run them beside the products
(Transformer Engine's user buffers in NeMo, asynchronous tensor parallelism in torchtitan)."""
FP8_TENSOR_PARALLEL_SHARE = 0.75
"""With sequence parallelism and fp8 the gathers, half of the volume, move 8 bit (torchtitan, docs/float8.md: "float8
all-gather ... for TP by default"; Transformer Engine gathers quantised inputs)."""
CONTEXT_PARALLEL_EXPOSED = 0.30
PIPELINE_SEND_EXPOSED = 0.32
OVERLAP_BUCKET_BYTES = 25 * 2**20
"""DDP's default bucket: the last one cannot hide."""

# --- spans: relative half-width of the 90 % band by what the estimate rests on --------------------------------------
SPAN_CALIBRATED, SPAN_CATALOG = 0.145, 0.145
"""Nine in ten of all published runs lie within (docs/accuracy.md). A run that has set the scale takes the doubt about
the network away, hardly that about the computation."""
SPAN_MEASURED = 0.25
"""Rates measured on processors, and networks."""
SPAN_ASSUMED = 0.80
SPAN_PER_VARIATION = 1.6
"""A node whose speed varies by a coefficient v widens the band by this times v (the 90 % quantile of a normal one)."""

PCIE_COLLECTIVE_SHARE = 0.6
"""Share of one PCIe link's rate that a ring through the host reaches per device, both directions in use."""

# --- methods -------------------------------------------------------------------------------------------------------
UNPACK_BYTES = 4.5
"""QLoRA, per frozen weight and pass: read 4 bits and scales, write 16 bits, read them again (counted)."""
SELECTIVE_MATMUL_SHARE = 0.4
"""Selective checkpointing outside Megatron saves every second product and attention (torchtitan)."""
MODULE_SHARE = 0.5
"""A counted module (convolutions, small products) against large square products."""
