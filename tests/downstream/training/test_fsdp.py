"""FSDP in two processes on CPUs: the numbers and the checkpoints of ordinary training."""
import json
import pickle
import time
from pathlib import Path

import pytest
import torch
import torch.distributed
from commands import command, two_processes
from mmengine.config import Config
from torch import nn

from downstream.data.generated import make_demo_data
from downstream.errors import UserError
from downstream.training.fsdp import PlainFSDPStrategy
from downstream.training.launching import fit_strategy

ROOT = Path(__file__).resolve().parents[3]
STEPS = 8  # of two epochs

# DETR and FocalNet have no batch statistics, and here nothing random. Every gradient is clipped;
# there are two learning rates, a frozen stem, and, where it is shared out, recomputed blocks. With
# this eps the scale of a gradient matters to AdamW, and rounding near zero does not.
CONFIG = '''
_base_ = {bases}
custom_imports = dict(imports=['backbones', 'downstream', 'record'])
custom_hooks = [dict(type='Record')]
model = dict(backbone=dict(frozen_stages=0, use_checkpoint={recompute}),
             bbox_head=dict(sync_cls_avg_factor=True))
optim_wrapper = dict(optimizer=dict(lr=4e-3, weight_decay=0.05, eps=1e-3),
                     paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=0.1))))
train_cfg = dict(max_epochs=2, val_interval=2)
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=6)]
train_dataloader = dict(batch_size={batch}, num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
default_hooks = dict(checkpoint=dict(interval=1), logger=dict(interval=1))
'''
RECORD = '''
import atexit
import json
import os
from pathlib import Path

from mmengine.dist import all_reduce, get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class Record(Hook):
    """Writes a line a step: the whole batch's loss, its gradient's norm, this process's share."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        loss = outputs['loss'].detach().clone()
        all_reduce(loss, 'mean')
        step = dict(loss=loss.item(), params=sum(p.numel() for p in runner.model.parameters()),
                    grad_norm=runner.message_hub.get_scalar('train/grad_norm').current())
        with Path(runner.work_dir, f'rank{get_rank()}.jsonl').open('a') as file:
            file.write(json.dumps(step) + chr(10))


@atexit.register  # imported before the process group begins: called after all else
def record_threads():
    if 'RANK' in os.environ:
        names = [path.read_text().strip() for path in Path('/proc/self/task').glob('*/comm')]
        Path(f'threads{os.environ["RANK"]}.json').write_text(json.dumps(names))
'''


def run(name, *args):
    """A tool's main function, in this process."""
    time.sleep(1.01 - time.time() % 1)  # mmengine names runs, and their loggers, by the second
    command(name).main([*map(str, args)])


def steps(work_dir, rank=0):
    return [json.loads(line) for line in Path(work_dir, f'rank{rank}.jsonl').open()]


def numbers(work_dir):
    return [(step['loss'], step['grad_norm']) for step in steps(work_dir)]


def load(path):
    return torch.load(path, weights_only=True)


@pytest.fixture(scope='module', autouse=True)
def trained(tmp_path_factory):
    """Two epochs in one process (work_dirs/one); the same in two, stopped and resumed between."""
    folder = tmp_path_factory.mktemp('fsdp')
    make_demo_data(folder / 'data', train=STEPS, val=2, size=96)
    demo, fsdp = (str(ROOT / 'configs' / name)
                  for name in ('demo/memorise_detr_focalnet.py', '_base_/fsdp.py'))
    (folder / 'one.py').write_text(CONFIG.format(bases=[demo], recompute=False, batch=2))
    (folder / 'two.py').write_text(CONFIG.format(bases=[demo, fsdp], recompute=True, batch=1))
    (folder / 'record.py').write_text(RECORD)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.setenv('DEMO_ROOT', str(folder / 'data'))
        patch.setenv('LOCAL_RANK', '0')  # train.py sets it; it is taken back here
        run('train', 'one.py', '--auto-scale-lr')
        two_processes('two.py', '--auto-scale-lr', '--cfg-options', 'train_cfg.max_epochs=1')
        two_processes('two.py', '--auto-scale-lr', '--resume', '--allow-changes')  # longer
        yield
    torch.set_num_threads(threads)


def test_processes_leave_no_thread_of_their_group():
    """Such threads abort a process in one of a few exits."""
    for rank in 0, 1:
        names = json.loads(Path(f'threads{rank}.json').read_text())
        assert names and not [name for name in names if 'gloo' in name]


def test_same_numbers():
    """Losses and total gradient norms of one process; each of two holds half of the parameters."""
    assert len(numbers('work_dirs/one')) == STEPS
    torch.testing.assert_close(numbers('work_dirs/two'), numbers('work_dirs/one'),
                               rtol=1e-5, atol=0)
    assert min(norm for _, norm in numbers('work_dirs/one')) > 0.1  # what it is clipped at
    log = next(Path('work_dirs/two').glob('*/*.log')).read_text()
    assert 'batch size of 4 and the current batch size is 2' in log
    whole = steps('work_dirs/one')[0]['params']
    shares = [steps('work_dirs/two', rank)[0]['params'] for rank in (0, 1)]
    assert sum(shares) == whole and max(shares) < 0.51 * whole


@pytest.mark.parametrize('epoch', [1, 2])
def test_same_checkpoint(epoch):
    one, two = (load(f'work_dirs/{name}/epoch_{epoch}.pth') for name in ('one', 'two'))
    assert list(one['state_dict']) == list(two['state_dict'])
    torch.testing.assert_close(dict(two['state_dict']), dict(one['state_dict']),
                               rtol=1e-4, atol=1e-6)
    assert one['param_schedulers'] == two['param_schedulers']
    assert one['optimizer']['param_groups'] == two['optimizer']['param_groups']
    assert one['optimizer'].keys() == two['optimizer'].keys()
    for index, state in one['optimizer']['state'].items():
        for name, value in state.items():
            scale = value.abs().max().item()
            torch.testing.assert_close(two['optimizer']['state'][index][name], value,
                                       rtol=1e-3, atol=1e-4 * scale + 1e-12)


def test_plain_processes_go_on_and_score(tmp_path):
    """Its checkpoints, with its config, in one process: the tools do without FSDP."""
    run('train', 'two.py', '--work-dir', tmp_path, '--resume', 'work_dirs/two/epoch_1.pth',
        '--auto-scale-lr', '--allow-changes', '--cfg-options', 'train_dataloader.batch_size=2')
    torch.testing.assert_close(numbers(tmp_path), numbers('work_dirs/one')[STEPS // 2:],
                               rtol=1e-5, atol=0)
    assert 'training without FSDP' in next(tmp_path.glob('*/*.log')).read_text()

    found = []
    for name in ('one', 'two'):
        run('test', 'two.py', f'work_dirs/{name}/epoch_2.pth', '--work-dir', tmp_path,
            '--out', tmp_path / f'{name}.pkl')
        found.append([{key: image['pred_instances'][key] for key in ('scores', 'bboxes')}
                      for image in pickle.loads((tmp_path / f'{name}.pkl').read_bytes())])
    assert found[0][0]['scores'].shape == (20,)
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


@pytest.fixture
def strategy(tmp_path):
    torch.distributed.init_process_group('gloo', init_method=f'file://{tmp_path}/group', rank=0,
                                         world_size=1)
    yield PlainFSDPStrategy(blocks='Block$', work_dir=str(tmp_path), experiment_name='strategy')
    torch.distributed.destroy_process_group()


def test_weights_that_do_not_fit(strategy, tmp_path):
    """To begin from another model's file, a bare state dict: logged, as without FSDP."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    before = model[1].weight.detach().clone()
    strategy.model = strategy._wrap_model(strategy.build_model(model))
    torch.save({'module.0.weight': torch.ones(3, 2), '1.weight': torch.ones(9, 3)},
               tmp_path / 'other.pth')
    strategy.load_checkpoint(str(tmp_path / 'other.pth'))
    state = strategy.model.state_dict()
    assert state['0.weight'].eq(1).all() and state['1.weight'].equal(before)
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert "of another shape ['1.weight']" in log and "missing ['0.bias'" in log


def test_a_number_cannot_be_shared_out(strategy):
    model = nn.Linear(2, 3)
    model.scale = nn.Parameter(torch.tensor(1.))
    with pytest.raises(UserError, match='single numbers.* scale'):
        strategy.build_model(model)


def test_what_does_not_go_together():
    cfg = Config(dict(runner_type='FSDPRunner', strategy=dict(type='PlainFSDPStrategy'),
                      launcher='pytorch'))
    assert fit_strategy(cfg) == [] and 'strategy' in cfg
    with pytest.raises(UserError, match='sync_bn does not go together'):
        fit_strategy(Config(dict(cfg, sync_bn='torch')))
    with pytest.raises(UserError, match='EMAHook does not go together'):
        fit_strategy(Config(dict(cfg, custom_hooks=[dict(type='mmdet.EMAHook')])))
    cfg.launcher = 'none'
    assert 'without FSDP' in fit_strategy(cfg)[0] and 'runner_type' not in cfg
