"""Read what Ludwig's configuration takes, and write it to ``tests/emit/ludwig_fields.json``.

    python benchmarks/ludwig_fields.py FOLDER/ludwig.yaml BASE_MODEL

The environment needs Ludwig, no GPU; BASE_MODEL is a folder with a small model of transformers. The file is read by
Ludwig's own parser as well, which lets unknown keys pass: hence the list.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

OUTPUT = Path(__file__).parent.parent / "tests" / "emit" / "ludwig_fields.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("base_model")
    given = parser.parse_args()
    import ludwig.globals
    import yaml
    from ludwig.schema.features.preprocessing.text import TextPreprocessingConfig
    from ludwig.schema.llms.peft import LoraConfig
    from ludwig.schema.llms.quantization import QuantizationConfig
    from ludwig.schema.lr_scheduler import LRSchedulerConfig
    from ludwig.schema.model_types.base import ModelConfig
    from ludwig.schema.model_types.llm import LLMModelConfig
    from ludwig.schema.optimizers import AdamWOptimizerConfig, GradientClippingConfig
    from ludwig.schema.preprocessing import PreprocessingConfig
    from ludwig.schema.trainer import FineTuneTrainerConfig

    sections = {
        "": LLMModelConfig,
        "adapter": LoraConfig,
        "quantization": QuantizationConfig,
        "preprocessing": PreprocessingConfig,
        "features.preprocessing": TextPreprocessingConfig,
        "trainer": FineTuneTrainerConfig,
        "trainer.learning_rate_scheduler": LRSchedulerConfig,
        "trainer.optimizer": AdamWOptimizerConfig,
        "trainer.gradient_clipping": GradientClippingConfig,
    }
    config = yaml.safe_load(given.file.read_text(encoding="utf-8")) | {"base_model": given.base_model}
    read = ModelConfig.from_dict(config)
    print(f"read: {read.trainer.batch_size} x {read.trainer.gradient_accumulation_steps}, {read.trainer.train_steps}")
    try:
        release = version("ludwig")
    except PackageNotFoundError:
        release = ludwig.globals.LUDWIG_VERSION
    listed = {name: sorted(section.model_fields) for name, section in sections.items()}
    document = {"version": release, "sections": listed}
    OUTPUT.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
