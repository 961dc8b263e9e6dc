"""``python -m backbones``: the environment, as a report to paste into a bug report."""
import contextlib
import importlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch
from mmengine.registry import MODELS

import backbones

DISTRIBUTION = 'downstream-backbones'  # as in pyproject.toml
PACKAGES = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'numpy', 'cv2', 'pycocotools', 'torchvision')


def version(name: str) -> str:
    """The version of an import name and the distribution that it comes from."""
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a broken install is just what the report is for
        return f'not importable ({type(error).__name__}: {error})'
    distributions = importlib.metadata.packages_distributions().get(name, [])
    found = getattr(module, '__version__', None)
    if not found and distributions:
        found = importlib.metadata.version(distributions[0])
    return f'{found} ({", ".join(sorted(set(distributions))) or "no distribution"})'


def operations(device: str) -> str:
    """Whether mmcv's compiled operations run on a device."""
    try:
        from mmcv.ops import nms
        boxes = torch.tensor([[0., 0., 10., 10.], [0., 0., 10., 9.]], device=device)
        kept = nms(boxes, torch.tensor([0.9, 0.8], device=device), 0.5)[1].tolist()
        return 'work' if kept == [0] else f'give a wrong result ({kept})'
    except Exception as error:
        return f'do not work ({type(error).__name__}: {str(error).splitlines()[0]})'


def revision() -> str:
    """What git says of a checkout; of an installed package, its version."""
    here = Path(__file__)

    def git(*args):
        with contextlib.suppress(OSError):  # no git
            return subprocess.run(['git', *args], cwd=here.parent, text=True,
                                  capture_output=True).stdout.strip()

    # An environment may lie inside a checkout of something else.
    if git('ls-files', here.name):
        return git('describe', '--always', '--dirty')
    try:
        return f'{importlib.metadata.version(DISTRIBUTION)} (installed)'
    except importlib.metadata.PackageNotFoundError:
        return 'unknown (neither a git checkout nor an installed package)'


def report():
    """(name, value) rows."""
    yield 'revision', revision()
    yield 'system', f'{platform.platform()}, {len(os.sched_getaffinity(0))} cores'
    yield 'python', platform.python_version()
    yield 'torch', f'{torch.__version__} (CUDA {torch.version.cuda or "none"})'
    for i in range(torch.cuda.device_count()):
        name, capability = torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)
        yield f'GPU {i}', f'{name}, compute capability {".".join(map(str, capability))}'
    if not torch.cuda.is_available():
        yield 'GPU', 'none'
    for name in PACKAGES:
        yield name, version(name)
    for device in ['cpu'] + ['cuda'] * torch.cuda.is_available():
        yield f'mmcv operations, {device}', operations(device)
    own = sorted(name for name, cls in MODELS.module_dict.items()
                 if cls.__module__.split('.')[0] == backbones.__name__)
    yield 'backbones', ', '.join(own)
    for name in ('COCO_ROOT', 'ADE20K_ROOT', 'OMP_NUM_THREADS'):
        yield name, os.environ.get(name, '(not set)')


if __name__ == '__main__':
    for key, value in report():
        print(f'{key:22} {value}')
