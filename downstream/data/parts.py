"""The parts of a config that are about data: data sets behind wrappers, steps, evaluators."""
from collections.abc import Iterator

from mmengine.config import Config, ConfigDict

LOADERS = {split: f'{split}_dataloader' for split in ('train', 'val', 'test')}


def leaves(dataset: ConfigDict) -> Iterator[ConfigDict]:
    """The data sets behind a data set's wrappers."""
    if 'datasets' in dataset:
        for part in dataset.datasets:
            yield from leaves(part)
    elif 'dataset' in dataset:
        yield from leaves(dataset.dataset)
    else:
        yield dataset


def steps_of(cfg: Config, kind: str) -> Iterator[ConfigDict]:
    """All steps of a type in all pipelines: of data sets, of nested transforms, of --tta."""
    def walk(node):
        if isinstance(node, dict):
            if str(node.get('type')).rpartition('.')[2] == kind:
                yield node
            for value in node.values():
                yield from walk(value)
        elif isinstance(node, list | tuple):
            for value in node:
                yield from walk(value)

    for key in (*LOADERS.values(), 'tta_pipeline'):
        yield from walk(cfg.get(key))


def metrics_of(cfg: Config, split: str) -> list[ConfigDict]:
    """A split's evaluators: there may be none, one or several."""
    metrics = cfg.get(f'{split}_evaluator') or []
    return [metrics] if isinstance(metrics, dict) else list(metrics)
