"""tools/convert_checkpoint.py: what it writes is loaded as it is, and says where it is from."""
import hashlib
import json
import re
from pathlib import Path

import convert_checkpoint
import pytest
import safetensors
import torch
from golden_utils import load_golden, rule_value
from mmengine.runner import save_checkpoint
from torch import nn

import backbones
from downstream.training.checkpoints import load_from_file

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / 'configs/maskrcnn_focalnet_t_1x.py'


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def convert(*argv):
    convert_checkpoint.main([str(arg) for arg in argv])


def refused(*argv):
    with pytest.raises(SystemExit) as stop:
        convert(*argv)
    assert stop.value.code.startswith('error: ')
    return stop.value.code


@pytest.fixture
def timm():
    torch.save({key: rule_value(key, shape) for key, shape, _ in
                load_golden('timm_focalnet_tiny_lrf')['keys']}, 'timm.pth')
    return 'timm.pth'


def test_imagenet_weights_for_an_experiment(timm, capsys, monkeypatch):
    convert(timm, 'det.safetensors', '--config', CONFIG)
    said = capsys.readouterr().out
    digest = hashlib.sha256(Path(timm).read_bytes()).hexdigest()
    assert digest in said and 'names of timm -> ours' in said
    assert '220 of 228 tensors loaded, 36 of them resized: 12 x kernel padded 3 -> 9' in said
    with safetensors.safe_open('det.safetensors', 'pt') as file:
        about = file.metadata()
    assert about['source'] == timm and about['source_sha256'] == digest
    assert json.loads(about['rules']) == [
        'names of timm -> ours', 'classifier dropped',
        '12 x kernel padded 3 -> 9, 12 x kernel padded 5 -> 11, 12 x kernel padded 7 -> 13']

    # the converted file and the source make the same backbone
    logged = []
    monkeypatch.setattr('backbones.pretrained.print_log', lambda text, **_: logged.append(text))
    models = []
    for path in (timm, 'det.safetensors'):
        torch.manual_seed(0)
        models.append(backbones.FocalNet(init_cfg=dict(type='Pretrained', checkpoint=path)))
        models[-1].init_weights()
    for (name, a), b in zip(models[0].state_dict().items(), models[1].state_dict().values(),
                            strict=True):
        assert a.equal(b), name
    assert '36 of them resized' in logged[0] and '0 of them resized' in logged[1]


def test_without_a_config_kernels_stay(timm):
    convert(timm, 'plain.pth')
    content = torch.load('plain.pth')
    state = content['state_dict']
    assert state['layers.0.blocks.0.modulation.focal_layers.0.0.weight'].shape == (96, 1, 3, 3)
    assert not any(name.startswith('head') for name in state)
    assert content['meta']['rules'] == ['names of timm -> ours', 'classifier dropped']


def test_another_variants_file(timm):
    message = refused(timm, 'det.pth', '--config', ROOT / 'configs/maskrcnn_focalnet_s_1x.py')
    assert ('The file is FocalNet-T lrf (first kernel 3), the model FocalNet-S lrf '
            '(first kernel 9)') in message
    message = refused(timm, 'det.pth', '--config', ROOT / 'configs/maskrcnn_swin_t_1x.py')
    assert 'SwinTransformer is a backbone of mmdet' in message
    assert not Path('det.pth').exists()
    convert(timm, 'det.pth', '--config', ROOT / 'configs/maskrcnn_focalnet_s_1x.py',
            '--allow-partial')
    assert 'layers.2.blocks.5.norm1.weight' in torch.load('det.pth')['state_dict']


def test_whole_detectors_are_checked_against_the_config():
    entries = dict(load_golden('released_detector_keys')['maskrcnn_focalnet_t_3x or _1x (lrf)'])
    state = {key: torch.zeros(shape) for key, shape in entries.items()}
    torch.save(dict(meta=dict(mmdet_version='2.11.0', CLASSES=('a', )), state_dict=state), 'w.pth')
    convert('w.pth', 'out.pth', '--config', CONFIG)
    content = torch.load('out.pth')
    assert content['state_dict'].keys() == entries.keys()
    assert content['meta']['CLASSES'] == ('a', )
    message = refused('w.pth', 'no.pth', '--config', ROOT / 'configs/maskrcnn_focalnet_s_1x.py')
    assert 'The file is FocalNet-T lrf (first kernel 9), the model FocalNet-S lrf' in message
    assert re.search(r'backbone\.layers\.2\.blocks\.6\.norm1\.weight: not in the file', message)
    assert not Path('no.pth').exists()


def test_publishes_a_training_checkpoint(capsys):
    """The optimizer is dropped, and of views only what they show is written."""
    model = nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    state = {f'backbone.{name}': value for name, value in model.state_dict().items()}
    state['head.weight'] = torch.zeros(1000, 300)[:2]
    save_checkpoint(dict(meta=dict(epoch=3, iter=7, config='x = 1'), message_hub=dict(),
                         state_dict=state, ema_state_dict=dict(state),
                         optimizer=optimizer.state_dict()), 'epoch_3.pth')
    convert('epoch_3.pth', 'published.pth')
    assert 'averaged weights (EMA) kept; dropped: message_hub, ema_state_dict, optimizer' in (
        capsys.readouterr().out)
    content = torch.load('published.pth')
    assert content.keys() == {'meta', 'state_dict'}
    assert content['meta'].keys() == {'source', 'source_sha256', 'rules', 'epoch', 'iter'}
    assert all(content['state_dict'][name].equal(value) for name, value in state.items())
    assert Path('published.pth').stat().st_size < 400_000 < Path('epoch_3.pth').stat().st_size
    convert('published.pth', 'published.safetensors')
    assert load_from_file('published.safetensors')['state_dict'].keys() == state.keys()


def test_refusals(timm):
    assert 'give it a name in .safetensors or .pth' in refused(timm, 'out.onnx')
    assert 'is the source itself' in refused(timm, timm)
    assert 'there is no weight file gone.pth' in refused('gone.pth', 'out.pth')
    assert 'there is no config file gone.py' in refused(timm, 'out.pth', '--config', 'gone.py')
    assert not Path('out.pth').exists()
