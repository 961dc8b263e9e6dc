"""Checkpoints: read without running code, refused where they are another model's."""
import functools
import http.server
import pickle
import threading
from pathlib import Path

import pytest
import torch
from commands import command, refused
from mmengine.config import Config
from mmengine.runner import CheckpointLoader

from backbones import FocalNet
from backbones.pretrained import TRUSTED, history_method
from downstream import errors
from downstream.errors import UserError
from downstream.training import checkpoints
from downstream.training.checkpoints import check_name, load_from_file, plain_meta
from downstream.training.fine_tuning import classes_of

CONFIGS = Path(__file__).resolve().parents[3] / 'configs'
train, score = command('train').main, command('test').main
pytestmark = pytest.mark.usefixtures('elsewhere')


@pytest.fixture
def trained(segmentation, tmp_path):
    """A checkpoint of the tiny segmentor."""
    train([str(segmentation), '--cfg-options', 'train_cfg.max_iters=1', 'val_dataloader=None',
           'val_evaluator=None', 'val_cfg=None'])
    return tmp_path / 'work_dirs' / segmentation.stem / 'iter_1.pth'


def test_checkpoint_that_is_none(detection, tmp_path):
    assert 'no checkpoint file gone.pth' in refused(score, detection, 'gone.pth')
    assert 'no checkpoint file gone.pth' in refused(train, detection, '--resume', 'gone.pth')
    (tmp_path / 'noise.pth').write_bytes(bytes(range(256)) * 20)
    message = refused(score, detection, 'noise.pth')
    assert 'noise.pth is no weight file, or not all of it' in message


class Attack:
    def __reduce__(self):
        return open, ('executed', 'w')


def test_reading_a_checkpoint_runs_no_code(tmp_path):
    torch.save(dict(state_dict=Attack()), 'attack.pth')
    with pytest.raises(errors.UserError, match='more than weights.*open'):
        checkpoints.load_from_file('attack.pth')
    assert not Path('executed').exists()
    for damage in (b'', b'hello', b'\200\002.', Path('attack.pth').read_bytes()[:300]):
        Path('damaged.pth').write_bytes(damage)
        with pytest.raises(errors.UserError, match='damaged.pth is no weight file'):
            checkpoints.load_from_file('damaged.pth')
    for content in ({1: torch.zeros(1)}, dict(state_dict=[1]), dict(state_dict=dict(weight=3))):
        torch.save(content, 'odd.pth')
        with pytest.raises(errors.UserError, match='without named tensors'):
            checkpoints.load_from_file('odd.pth')
    torch.save([1, 2], 'list.pth')
    with pytest.raises(errors.UserError, match='holds a list'):
        checkpoints.load_from_file('list.pth')
    with pytest.raises(pickle.UnpicklingError):
        history_method(str, 'format')


FOCALNET = ['custom_imports.imports=downstream,backbones', 'model.backbone._delete_=True',
            'model.backbone.type=FocalNet']
INIT = ['model.backbone.init_cfg.type=Pretrained', 'model.backbone.init_cfg.checkpoint=attack.pth']


@pytest.mark.parametrize('main, argv', [
    (train, ['CONFIG', '--cfg-options', *INIT]),
    (train, ['CONFIG', '--cfg-options', *FOCALNET, *INIT]),
    (train, ['CONFIG', '--cfg-options', 'load_from=attack.pth']),
    (train, ['CONFIG', '--resume', 'attack.pth']),
    (train, ['CONFIG', '--resume', '--work-dir', 'run']),  # the latest checkpoint there
    (score, ['CONFIG', 'attack.pth']),
    (command('convert_checkpoint').main, ['attack.pth', 'converted.pth']),
    (command('convert_checkpoint').main, ['attack.pth', 'converted.pth', '--config', 'CONFIG']),
], ids=['init_cfg', 'init_cfg of a backbone here', 'load_from', 'resume', 'latest', 'test',
        'convert', 'convert --config'])
def test_no_tool_runs_code_from_a_weight_file(detection, main, argv, capfd):
    torch.save(dict(state_dict=dict(weight=torch.zeros(1)), note=Attack()), 'attack.pth')
    Path('run').mkdir()
    Path('run/last_checkpoint').write_text('attack.pth')
    message = refused(main, *[detection if word == 'CONFIG' else word for word in argv])
    assert 'attack.pth holds more than weights' in message and '--trust-checkpoint' in message
    assert not Path('executed').exists() and not Path('converted.pth').exists()


@pytest.mark.parametrize('main, argv', [
    (score, ['yes.pth']), (train, ['--resume', 'yes.pth']),
    (train, ['--cfg-options', 'model.backbone.init_cfg.type=Pretrained',
             'model.backbone.init_cfg.checkpoint=yes.pth', 'load_from=no.pth']),
])
def test_trust_is_for_the_files_that_are_named(detection, main, argv):
    """And then code does run, which the test above would have noticed."""
    torch.save(dict(state_dict=dict(weight=torch.zeros(1)), note=Attack()), 'yes.pth')
    torch.save(dict(state_dict=dict(weight=torch.zeros(1))), 'no.pth')
    message = refused(main, detection, *argv, '--trust-checkpoint')
    assert 'does not fit the model' in message and Path('executed').exists()
    TRUSTED.clear()


def test_no_other_way_of_loading_runs_code_either(tmp_path, monkeypatch):
    torch.save(dict(state_dict=Attack()), 'attack.pth')
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    served = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f'http://127.0.0.1:{server.server_port}'
        with pytest.raises(errors.UserError, match='more than weights'):
            CheckpointLoader.load_checkpoint(f'{url}/attack.pth', 'cpu')
        with pytest.raises(errors.UserError, match='gone.pth cannot be downloaded: HTTP Error 404'):
            CheckpointLoader.load_checkpoint(f'{url}/gone.pth', 'cpu')
        torch.save(dict(weight=torch.ones(2)), 'good.pth')
        state = CheckpointLoader.load_checkpoint(f'{url}/good.pth', 'cpu')['state_dict']
        assert state['weight'].sum() == 2
        server.shutdown()
    with pytest.raises(pickle.UnpicklingError):
        torch.load('attack.pth', weights_only=False)
    assert not Path('executed').exists()


def test_checkpoint_of_another_model(segmentation, detection, trained):
    message = refused(score, detection, trained)
    assert 'does not fit the model' in message and ' tensors fit' in message
    assert 'neck.lateral_convs.0.conv.weight: not in the file' in message
    assert 'experiment tiny_fcn_' in message

    content = torch.load(trained)
    content['state_dict']['decode_head.conv_seg.weight'] = torch.zeros(5, 8, 1, 1)
    torch.save(content, 'five.pth')
    message = refused(score, segmentation, 'five.pth')
    assert '(5, 8, 1, 1) in the file, (2, 8, 1, 1) in the model' in message

    del content['optimizer']
    content['state_dict']['decode_head.conv_seg.weight'] = torch.zeros(2, 8, 1, 1)
    torch.save(content, 'weights.pth')
    message = refused(train, segmentation, '--resume', 'weights.pth')
    assert 'holds weights only' in message and 'load_from=FILE' in message


def test_partial_weights(segmentation, trained):
    """Refused, for the backbone and for the whole model, unless the person says otherwise."""
    state = {name: value for name, value in torch.load(trained)['state_dict'].items()
             if 'layer4' not in name}
    torch.save(dict(state_dict=state), 'model.pth')
    quick = ['--cfg-options', 'train_cfg.max_iters=1', 'val_dataloader=None', 'val_evaluator=None',
             'val_cfg=None']
    message = refused(train, segmentation, *quick, 'load_from=model.pth')
    assert 'backbone.layer4.0.conv1.weight: not in the file' in message
    assert '--allow-partial' in message
    train([str(segmentation), '--allow-partial', *quick, 'load_from=model.pth'])
    assert '--allow-partial' in refused(score, segmentation, 'model.pth')
    score([str(segmentation), 'model.pth', '--allow-partial'])
    message = refused(train, segmentation, '--allow-partial', '--resume', 'model.pth')
    assert 'does not fit the model' in message and 'allow-partial' not in message

    tiny = [*FOCALNET, 'model.backbone.embed_dim=8', 'model.decode_head.in_channels=64', INIT[0],
            'model.backbone.init_cfg.checkpoint=backbone.pth']
    torch.save(FocalNet(embed_dim=8, depths=(2, 2, 2, 2)).state_dict(), 'backbone.pth')
    message = refused(train, segmentation, *quick, *tiny)
    assert 'have a place there: it is another model' in message and '--allow-partial' in message
    train([str(segmentation), '--allow-partial', *quick, *tiny])


def test_a_name_of_another_dino_is_refused_before_it_is_fetched(monkeypatch):
    """detrex's under the authors' config, the other way round, and with other scales."""
    monkeypatch.setattr('backbones.weights.fetch_named', None)

    def refused_with(experiment, name):
        with pytest.raises(UserError) as stop:
            check_name(Config.fromfile(CONFIGS / f'{experiment}.py'), name)
        return str(stop.value)

    said = refused_with('dino_focalnet_l_5scale_12e', 'dino_focalnet_l_5scale_12e_detrex')
    assert 'of configs/dino_focalnet_l_5scale_12e_detrex.py' in said
    assert 'temperature: 10000 in the file, 20 in the model' in said
    said = refused_with('dino_focalnet_l_5scale_12e_detrex', 'dino_focalnet_l_5scale_12e_test1200')
    assert 'of configs/dino_focalnet_l_5scale_12e_test1200.py' in said
    assert 'normalize modulator: True in the file, False in the model' in said
    said = refused_with('dino_focalnet_l_5scale_12e_detrex', 'dino_focalnet_l_4scale_36e_detrex')
    assert 'is DINO with 4 scales on FocalNet-L fl3' in said
    for experiment, name in (
            ('dino_focalnet_l_5scale_12e', 'dino_focalnet_l_5scale_12e_test1200'),
            ('dino_focalnet_l_4scale_12e_detrex', 'dino_focalnet_l_4scale_36e_detrex'),
            ('maskrcnn_focalnet_t_1x', 'maskrcnn_focalnet_t_3x')):
        check_name(Config.fromfile(CONFIGS / f'{experiment}.py'), name)


@pytest.mark.parametrize('meta, kept', [
    (None, {}), (3, {}), ([], {}), ({'epoch': 3, 'experiment_name': 4}, {'epoch': 3}),
    ({'dataset_meta': 3, 'dino': 3}, {'dataset_meta': {}}),
    ({'dataset_meta': {'classes': 3, 'palette': [[1, 2]], 'a': 1}}, {'dataset_meta': {'a': 1}}),
    ({'dataset_meta': {'classes': ('a', 3)}, 'dino': '[' * 9999}, {'dataset_meta': {}}),
    ({'CLASSES': ['a'], 'PALETTE': 'red'}, {'CLASSES': ['a']})])
def test_what_a_file_says_of_itself_may_be_anything(tmp_path, meta, kept):
    torch.save(dict(state_dict={'a': torch.ones(1)}, meta=meta), tmp_path / 'w.pth')
    found = load_from_file(str(tmp_path / 'w.pth'))['meta']
    assert found == kept and classes_of({'meta': found}) in ((), ('a', ))
    good = dict(epoch=1, experiment_name='a', dino='{"two_stage": true}', dataset_meta=dict(
        classes=['a', 'b'], palette=[(1, 2, 3), [4, 5, 6]]))
    assert plain_meta(good) == good


def test_keys_that_are_no_names(tmp_path):
    """Beside those of a DINO, whose tensors are renamed."""
    state = {'module.transformer.level_embed': torch.ones(4, 2), None: torch.ones(1), 3: 'a',
             'module.class_embed.0.weight': None}
    torch.save(dict(state_dict=state), tmp_path / 'w.pth')
    found = load_from_file(str(tmp_path / 'w.pth'))['state_dict']
    assert found and all(isinstance(name, str) for name in found)
