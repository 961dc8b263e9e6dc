"""The project installed, and used from another one as docs/package.md says."""
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = 'backbones', 'downstream', 'configs'
PAGE = re.findall(r'```python\n(.*?)```', (ROOT / 'docs/package.md').read_text(), re.DOTALL)
VERSION = re.search(r"^version = '(.*)'", (ROOT / 'pyproject.toml').read_text(), re.M)[1]
# The page's experiment, small enough for a second or two of a CPU.
SMALL = '''
_base_ = 'my_maskrcnn.py'
resize = dict(type='Resize', scale=(64, 64))
labels = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
loader = dict(batch_size=1, num_workers=0, persistent_workers=False)
train_dataloader = dict(**loader, dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'), labels, resize, dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs')]))
val_dataloader = dict(**loader, dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'), resize, labels, dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))]))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=1)
param_scheduler = [dict(type='ConstantLR', factor=1.0)]
default_hooks = dict(logger=dict(interval=1))
randomness = dict(seed=0)
model = dict(
    backbone=dict(embed_dim=8, depths=(1, 1, 1, 1)), neck=dict(in_channels=[8, 16, 32, 64]),
    roi_head=dict(bbox_head=dict(fc_out_channels=32), mask_head=dict(num_convs=1)))
'''
# Runs in the project: the page's last example, then what the package says of itself, then train.py.
CHECKS = '''
import runpy, sys
from pathlib import Path
import backbones
assert 'mmcv' not in sys.modules and 'mmdet' not in sys.modules  # torch and mmengine suffice
from backbones.__main__ import revision
from backbones.weights import known
assert known()['focalnet_base_lrf']
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
cfg = Config.fromfile('my_upernet.py')  # nobody has imported downstream yet
import downstream
from downstream.data.preparing import sources
assert sources()['coco']
from downstream.scoring.records import CONFIGS, deviations
with DefaultScope.overwrite_default_scope(cfg.default_scope):
    model = MODELS.build(cfg.model)
print(*(Path(package.__file__).parents[1] for package in (backbones, downstream)), CONFIGS,
      revision(), type(model.backbone).__module__, model.decode_head.num_classes, sep='|')
print(*deviations({}, 'maskrcnn_focalnet_t_1x'), *deviations({}, 'my_maskrcnn'), sep='|')
if len(sys.argv) > 1:
    runpy.run_path('train.py', run_name='__main__')
'''


def run(*command, cwd):
    env = {**os.environ, 'OMP_NUM_THREADS': '1'}
    env.pop('PYTHONPATH', None)
    done = subprocess.run(list(map(str, command)), cwd=cwd, text=True, capture_output=True,
                          env=env, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def pip(*args, cwd):
    return run(sys.executable, '-m', 'pip', '--disable-pip-version-check', *args, cwd=cwd)


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    """A copy of what the package is built from: building leaves files beside its source."""
    source = tmp_path_factory.mktemp('source')
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder,
                        ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('pyproject.toml', 'setup.py', 'README.md', 'LICENSE'):
        shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope='module')
def wheel(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp('dist')
    pip('wheel', '-q', '--no-index', '--no-deps', '--no-build-isolation', '-w', folder, source,
        cwd=folder)
    return next(folder.glob('downstream_backbones-*.whl'))


@pytest.fixture(params=['wheel', 'editable'])
def installed(request, tmp_path, source, wheel):
    """(python, where the packages then lie, whether they are a copy): an environment of its own.

    It sees what the environment that runs the tests has.
    """
    folder = tmp_path / 'environment'
    venv.create(folder, symlinks=True)
    python = folder / 'bin' / 'python'
    site = Path(run(python, '-c', 'import sysconfig; print(sysconfig.get_paths()["purelib"])',
                    cwd=tmp_path).strip())
    (site / 'beside.pth').write_text(sysconfig.get_paths()['purelib'] + '\n')
    copied = request.param == 'wheel'
    pip('--python', python, 'install', '-q', '--no-index', '--no-deps', '--no-build-isolation',
        *([wheel] if copied else ['-e', source]), cwd=tmp_path)
    return python, site if copied else source, copied


def test_the_wheel_holds_every_file(source, wheel):
    """A folder that the package's list forgets, or a file of a new kind, would be left out."""
    wanted = {path.relative_to(source) for folder in FOLDERS
              for path in (source / folder).rglob('*') if path.is_file()}
    wanted = {str('downstream' / path if path.parts[0] == 'configs' else path) for path in wanted}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if '.dist-info/' not in name}
    assert names == wanted
    assert {name.split('/')[0] for name in names} == {'backbones', 'downstream'}


def test_a_project_of_ones_own(installed, coco, tmp_path):
    """Its two configs inherit ours: one trains (once: a copy), of the other the model is built."""
    python, where, copied = installed
    project = tmp_path / 'project'
    (project / 'data').mkdir(parents=True)
    coco.rename(project / 'data' / 'shapes')
    maskrcnn, train, upernet, alone = PAGE
    network = (ROOT / 'docs/backbone.md').read_text().split('```python\n')[1].split('```')[0]
    for name, text in {'my_maskrcnn.py': maskrcnn, 'train.py': train, 'my_upernet.py': upernet,
                       'my_networks.py': network.replace('.pretrained', 'backbones.pretrained'),
                       'small.py': SMALL, 'checks.py': alone + CHECKS}.items():
        (project / name).write_text(text)
    said = run(python, '-W', 'ignore', 'checks.py', *['small.py'] * copied, cwd=project)

    told, records = re.findall(r'^.*\|.*$', said, re.MULTILINE)[:2]
    configs = where / 'downstream' / 'configs' if copied else where / 'configs'
    assert told.split('|') == [str(where), str(where), str(configs), f'{VERSION} (installed)',
                               'my_networks', '150']
    assert records.split('|') == ['weights without a record of their training',
                                  'my_maskrcnn is no experiment in configs/']
    if copied:
        losses = [float(loss) for loss in re.findall(r'\bloss: ([\d.]+)', said)]
        assert len(losses) == 2 and all(0 < loss < 100 for loss in losses), said[-2000:]
        assert 'coco/segm_mAP:' in said and (project / 'work_dirs/epoch_1.pth').is_file()
