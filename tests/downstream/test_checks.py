"""Bad input ends the tools with one clear message: what is wrong, where, and what to do."""
import functools
import http.server
import importlib.util
import json
import pickle
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS
from mmengine.runner import CheckpointLoader
from PIL import Image

from backbones import FocalNet
from backbones.pretrained import TRUSTED, history_method
from downstream import checkpoints, errors, launch
from downstream.checks import check_all_there, head_classes, leaf_datasets

ROOT = Path(__file__).resolve().parents[2]


def tool(name):
    spec = importlib.util.spec_from_file_location(f'tools_{name}', ROOT / 'tools' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


train, score = tool('train'), tool('test')


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('LOCAL_RANK', '0')
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def refused(main, *argv):
    """The message that the tool ends with."""
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in argv])
    assert isinstance(stop.value.code, str)  # printed on stderr, with status 1
    assert stop.value.code.startswith('error: ')
    assert 'Traceback' not in stop.value.code
    return stop.value.code


# ------------------------------------------------------------------------------------- configs

def test_unknown_config_suggests_close_names():
    known = next(iter(sorted(ROOT.glob('configs/*.py'))), None)
    message = refused(train, f'configs/{known.stem}x.py' if known else 'configs/x.py')
    assert 'there is no config file configs/' in message
    assert not known or f'{known.stem}.py' in message.split('did you mean')[1]


@pytest.mark.parametrize('text, fragments', [
    ('a = 1\nmodel = dict(\n', ['bad.py is not a Python file: line 2', 'never closed']),
    ("_base_ = ['missing.py']\n", ['missing.py', 'a _base_ of', 'bad.py']),
    ("_base_ = 'broken_base.py'\n", ['broken_base.py is not a Python file: line 3']),
    ('a = 1\nb = c\n', ['bad.py, line 2', "name 'c' is not defined"]),
    ("_base_ = 'base.py'\nmodel = dict(a=1)\n", ['bad.py', 'model', '_delete_']),
    ("_base_ = __import__('downstream').inherit('maskrcnn_focalnet_t1x.py')\n",
     ['bad.py: the project has no config', 'did you mean maskrcnn_focalnet_t_1x.py or']),
    ("custom_imports = dict(imports=['no_such_module'])\n",
     ['bad.py', 'custom_imports cannot be imported', 'no_such_module']),
])
def test_malformed_config(tmp_path, text, fragments):
    (tmp_path / 'base.py').write_text('model = 3\n')
    (tmp_path / 'broken_base.py').write_text('a = 1\n\nb = = 2\n')
    (tmp_path / 'bad.py').write_text(text)
    message = refused(train, 'bad.py')
    assert all(fragment in message for fragment in fragments), message


@pytest.mark.parametrize('option, fragments', [
    ('train_cfg.max_iters', ['KEY=VALUE']),
    ('train_cfg.max_iters=[1,(2]', ['KEY=VALUE', 'brackets']),
    ('modle.backbone.depth=18', ["no 'modle'", "did you mean 'model'"]),
    ('model.backbone.depth.x=18', ['does not fit the config', 'depth']),
    ('param_scheduler.7.begin=1', ['does not fit the config', '7']),
    ('model.backbone.dept=18', ['cannot be built', "'dept'"]),
    ('model.backbone.type=ResNot', ['cannot be built', 'ResNot is not in the']),
    ('train_dataloader.dataset.type=CocoDaset', ['cannot be built', 'CocoDaset is not in the']),
    ('optim_wrapper.optimizer.type=Adamm', ["there is no optimizer 'Adamm'"]),
    ('model=foo', ["'model' is 'foo', not a dict"]),
    ('load_from=5', ['load_from is 5, not the path']),
])
def test_bad_cfg_options(detection, option, fragments):
    message = refused(train, detection, '--cfg-options', option)
    assert all(fragment in message for fragment in fragments), message


@pytest.mark.parametrize('part', ['schedules/1x.py', 'models/maskrcnn.py'])
def test_a_part_of_an_experiment(part):
    message = refused(train, ROOT / 'configs/_base_' / part)
    assert 'is no experiment that this tool can run' in message and 'None, not a dict' in message


def test_outputs_that_cannot_be_written(detection):
    Path('file').touch()
    assert '--work-dir: the folder file' in refused(train, detection, '--work-dir', 'file')
    assert '--out: the folder' in refused(score, detection, 'file', '--out', 'file/r.pkl')
    assert '--show-dir: the folder file' in refused(score, detection, 'file', '--show-dir', 'file')


# --------------------------------------------------------------------------------------- data

def test_wrong_root_names_path_variable_and_tree(detection, monkeypatch):
    monkeypatch.setenv('COCO_ROOT', 'nowhere')
    message = refused(train, detection)
    assert 'train_dataloader: the data folder nowhere does not exist' in message
    assert 'COCO_ROOT (now nowhere)' in message
    for path in ('annotations/train.json', 'annotations/val.json', 'train/', 'val/'):
        assert f'nowhere/{path}' in message
    assert 'docs/datasets.md' in message
    monkeypatch.delenv('COCO_ROOT')
    assert 'COCO_ROOT (not set, so data/coco is used)' in refused(train, detection)


def test_wrong_root_of_segmentation(segmentation, monkeypatch):
    monkeypatch.delenv('ADE20K_ROOT')
    message = refused(train, segmentation)
    assert 'the data folder data/ade does not exist' in message
    assert 'ADE20K_ROOT (not set, so data/ade is used)' in message
    assert 'data/ade/images/train/' in message


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize('damage, fragments', [
    (lambda r: (r / 'annotations/train.json').unlink(),
     ['annotation file', 'annotations/train.json does not exist']),
    (lambda r: shutil.rmtree(r / 'val'), ['val_dataloader', 'val/ (data_prefix.img) does not']),
    (lambda r: [p.unlink() for p in (r / 'train').iterdir()], ['(data_prefix.img) is empty']),
    (lambda r: (r / 'train/train1.jpg').unlink(), ['1 of 2 images listed in', ': train1.jpg']),
    (lambda r: (r / 'annotations/train.json').write_text('{"images": [{"id"'),
     ['train.json is not JSON, or not all of it', 'column']),
    (lambda r: (r / 'annotations/train.json').write_bytes(b'\xff\xfe\x00'), ['is not JSON']),
    (lambda r: (r / 'annotations/train.json').write_text('[]'), ['not in COCO format']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c.pop('annotations')),
     ['not in COCO format: no list of annotations']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c.update(images=[])),
     ['lists no images']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c.update(annotations=[])),
     ['lists no annotations']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c['images'][1].pop('file_name')),
     ['entry 1 of images has no file_name']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c.update(images=[1])),
     ['entry 0 of images has no id, file_name']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c['categories'][0].pop('name')),
     ['entry 0 of categories has no name']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c['annotations'][0].pop('bbox')),
     ['entry 0 of annotations has no bbox']),
    (lambda r: edit(r / 'annotations/train.json',
                    lambda c: c['annotations'][0].update(category_id=99)),
     ['categories that it does not define: ids 99']),
    (lambda r: edit(r / 'annotations/val.json', lambda c: c['categories'].pop()),
     ['val_dataloader', 'the config has 2 classes', 'has 1 categories', ': square']),
    # mmdet would take one class for the other, in training or in the score
    (lambda r: edit(r / 'annotations/val.json', lambda c: c['categories'].reverse()),
     ['val_dataloader', 'in the order square, disc, the config its classes as disc, square']),
])
def test_damaged_coco(detection, coco, damage, fragments):
    damage(coco)
    message = refused(train, detection)
    assert all(fragment in message for fragment in [*fragments, 'docs/datasets.md']), message


@pytest.mark.parametrize('damage, fragments', [
    (lambda r: (r / 'labels/train/1.png').unlink(),
     ['1 of 2 label maps of the images in', ': 1.png']),
    (lambda r: (r / 'images/train/0.jpg').unlink(),
     ['1 of 2 images that have a label map', ': 0.jpg']),
    (lambda r: [p.rename(p.with_suffix('.tif')) for p in (r / 'images/val').iterdir()],
     ['val_dataloader', 'holds no *.jpg images']),
    (lambda r: shutil.rmtree(r / 'labels'), ['labels/train (data_prefix.seg_map_path) does not']),
])
def test_damaged_ade(segmentation, ade, damage, fragments):
    damage(ade)
    message = refused(train, segmentation)
    assert all(fragment in message for fragment in [*fragments, 'docs/datasets.md']), message


@pytest.mark.parametrize('task, option, fragments', [
    ('detection', 'model.roi_head.bbox_head.num_classes=80',
     ['model.roi_head.bbox_head.num_classes is 80', 'has 2 classes']),
    ('detection', "train_dataloader.dataset.metainfo.classes=disc,square,star",
     ['the config has 3 classes', 'has 2 categories', ': star']),
    ('segmentation', 'model.decode_head.num_classes=150',
     ['model.decode_head.num_classes is 150', 'has 2 classes']),
    ('segmentation', 'train_dataloader.dataset.metainfo.classes=wall,spaceship',
     ['ADE20KDataset', 'spaceship', 'not a subset']),
    ('detection', 'val_evaluator.ann_file=other.json', ['val_evaluator', 'other.json']),
])
def test_wrong_classes(request, task, option, fragments):
    message = refused(train, request.getfixturevalue(task), '--cfg-options', option)
    assert all(fragment in message for fragment in fragments), message


@pytest.mark.parametrize('folder, name', [('images/train', '0.jpg'), ('labels/train', '0.png')])
def test_truncated_file_in_a_worker(segmentation, ade, folder, name):
    path = ade / folder / name
    path.write_bytes(path.read_bytes()[:60])
    message = refused(train, segmentation, '--cfg-options', 'train_dataloader.num_workers=1')
    assert f'{folder}/{name} cannot be loaded' in message and '--resume' in message


@pytest.mark.parametrize('label', [np.zeros((32, 32), np.uint8), np.zeros((64, 64, 3), np.uint8)])
def test_label_map_of_another_shape(segmentation, ade, label):
    Image.fromarray(label).save(ade / 'labels/train/0.png')
    message = refused(train, segmentation)
    assert 'labels/train/0.png has the shape' in message and 'one class number a pixel' in message


def test_other_processes_leave_the_data_to_the_first(detection, monkeypatch):
    monkeypatch.setenv('COCO_ROOT', 'nowhere')
    monkeypatch.setenv('RANK', '1')
    with pytest.raises(FileNotFoundError):
        train([str(detection)])


def test_wrappers_are_looked_into(coco):
    leaf = dict(type='mmdet.CocoDataset', data_root=str(coco), ann_file='annotations/train.json')
    wrapped = ConfigDict(type='ConcatDataset', datasets=[
        dict(type='RepeatDataset', times=2, dataset=leaf), leaf])
    assert [d.ann_file for d in leaf_datasets(wrapped)] == [f'{coco}/annotations/train.json'] * 2


def test_heads():
    model = dict(backbone=dict(num_classes=1000), rpn_head=dict(num_classes=1),
                 roi_head=dict(bbox_head=[dict(num_classes=3), dict(num_classes=4)],
                               semantic_head=dict(num_classes=183)),
                 auxiliary_head=dict(num_classes=5),
                 panoptic_head=dict(num_things_classes=6, num_stuff_classes=7))
    assert {name: number for name, _, number in head_classes(model)} == {
        'model.roi_head.bbox_head.0.num_classes': 3, 'model.roi_head.bbox_head.1.num_classes': 4,
        'model.auxiliary_head.num_classes': 5, 'model.panoptic_head.num_things_classes': 6,
        'model.panoptic_head.num_stuff_classes': 7}


def test_one_listing_serves_many_names(tmp_path):
    (tmp_path / 'sub').mkdir()
    (tmp_path / 'sub/a.jpg').touch()
    check_all_there(str(tmp_path), ['sub/a.jpg'] * 100000, 'images')
    with pytest.raises(errors.UserError, match=r'2 of 3 images are not in .*: a.jpg, other/a.jpg'):
        check_all_there(str(tmp_path), ['a.jpg', 'sub/a.jpg', 'other/a.jpg'], 'images')


# -------------------------------------------------------------------------------- checkpoints

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
    (tool('convert_checkpoint'), ['attack.pth', 'converted.pth']),
    (tool('convert_checkpoint'), ['attack.pth', 'converted.pth', '--config', 'CONFIG']),
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


# ------------------------------------------------------------------------------ flags, machine

def test_flags_that_ask_for_what_is_not_there(detection):
    no_tta = detection.with_name('no_tta.py')
    no_tta.write_text(f"_base_ = '{detection.name}'\ntta_model = None\n"
                      'auto_scale_lr = dict(_delete_=True)\n'
                      'default_hooks = dict(_delete_=True)\n')
    Path('any.pth').touch()
    assert 'has no tta_model' in refused(score, no_tta, 'any.pth', '--tta')
    assert '--show-dir' in refused(score, no_tta, 'any.pth', '--show-dir', 'x')
    assert '.pkl' in refused(score, no_tta, 'any.pth', '--out', 'x.json')
    assert 'auto_scale_lr.base_batch_size' in refused(train, no_tta, '--auto-scale-lr')


@pytest.mark.skipif(launch.has_accelerator(), reason='needs a machine without an accelerator')
def test_accelerator_flags_without_one(detection):
    assert '--amp: mixed precision needs a GPU' in refused(train, detection, '--amp')
    assert '--launcher slurm needs GPUs' in refused(train, detection, '--launcher', 'slurm')
    assert 'dist_train.sh' in refused(train, detection, '--launcher', 'pytorch')


def test_backbones_speak_for_themselves():
    """A ValueError of a backbone's constructor is shown alone; one from elsewhere is a bug."""
    source = ('class Picky:\n    def __init__(self):\n'
              '        raise ValueError("focal_levels: 3 numbers for 4 stages")\n')
    for module, message in [('backbones.picky', 'focal_levels: 3 numbers for 4 stages'),
                            ('elsewhere', None)]:
        namespace = {'__name__': module}
        exec(source, namespace)
        with pytest.raises(ValueError) as error:
            MODELS.build(dict(type=namespace['Picky']))
        assert errors.user_message(error.value) == message


def test_backbone_arguments(detection):
    pytest.importorskip('backbones')
    message = refused(
        train, detection, '--cfg-options', "custom_imports.imports=downstream,backbones",
        'model.backbone._delete_=True', 'model.backbone.type=FocalNet',
        'model.backbone.focal_levels=(3,3)')
    assert 'focal_levels' in message and 'FocalNet.__init__' not in message


def test_interrupt(capsys):
    with pytest.raises(SystemExit) as stop, errors.one_message('go on with --resume'):
        raise KeyboardInterrupt
    assert stop.value.code == 130
    assert capsys.readouterr().err == 'interrupted: go on with --resume\n'


def test_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError), errors.one_message(''):
        1 / 0  # noqa: B018
