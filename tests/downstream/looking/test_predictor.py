"""The model as a function of images: the same numbers as tools/test.py, without its data set."""
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import command, refused
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from pycocotools.mask import decode

from downstream import Predictor
from downstream.errors import UserError
from downstream.training.launching import read_config

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures('elsewhere')


def save_weights(config, path='weights.pth', **meta) -> str:
    """A checkpoint of the config's model, untrained."""
    cfg = read_config(config, {}, 'model')
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
        model.init_weights()
    torch.save(dict(state_dict=model.state_dict(), meta=meta), path)
    return path


@pytest.fixture
def panoptic(tmp_path, monkeypatch):
    monkeypatch.setenv('DEMO_ROOT', str(tmp_path / 'nowhere'))
    return ROOT / 'configs' / 'demo' / 'mask2former_panoptic_focalnet.py'


def test_detections_are_those_of_the_test(detection, coco):
    weights = save_weights(detection)
    command('test').main([str(detection), weights, '--work-dir', 'run', '--out', 'out.pkl'])
    expected = pickle.loads(Path('out.pkl').read_bytes())
    coco.rename('moved')  # nothing but the image is needed
    model = Predictor.from_checkpoint(detection, weights, 'cpu')
    results = model([f'moved/val/{Path(e["img_path"]).name}' for e in expected])
    assert model.classes == ('disc', 'square') and len(results[0]) > 1
    for result, sample in zip(results, expected, strict=True):
        truth = sample['pred_instances']
        np.testing.assert_array_equal(result.boxes, truth['bboxes'].numpy())
        np.testing.assert_array_equal(result.scores, truth['scores'].numpy())
        np.testing.assert_array_equal(result.labels, truth['labels'].numpy())
        np.testing.assert_array_equal(result.masks, [decode(m) for m in truth['masks']])
        assert result.masks.shape == (len(result), 64, 64) and result.masks.dtype == bool
        assert set(result.names) <= {'disc', 'square'}


def test_label_maps_are_those_of_the_test(segmentation, ade):
    weights = save_weights(segmentation)
    command('test').main([str(segmentation), weights, '--work-dir', 'run', '--out', 'out.pkl'])
    expected = pickle.loads(Path('out.pkl').read_bytes())
    ade.rename('moved')
    model = Predictor.from_checkpoint(segmentation, weights, 'cpu')
    result = model('moved/images/val/1.jpg')
    np.testing.assert_array_equal(result.labels, expected[1]['pred_sem_seg']['data'][0].numpy())
    assert set(result.names) == {model.classes[i] for i in np.unique(result.labels)}
    # Images of several sizes in a batch: mmseg stacks what has one size.
    images = [np.full((h, 64, 3), h, np.uint8) for h in (48, 64, 64, 32)]
    several = model(images, batch_size=3)
    assert [r.labels.shape[0] for r in several] == [48, 64, 64, 32]
    for image, one in zip(images, several, strict=True):
        np.testing.assert_array_equal(one.labels, model(image).labels)


def test_what_an_image_may_be(detection, coco):
    """The same picture as a file, an RGB array, a PIL image and a path object."""
    model = Predictor.from_checkpoint(str(detection), save_weights(detection), 'cpu')
    path = Path('picture.png')  # without loss
    Image.open(coco / 'val' / 'val0.jpg').save(path)
    image = Image.open(path)
    by_file = model(str(path))
    assert by_file.path == str(path) and len(by_file)
    np.testing.assert_array_equal(by_file.image, np.asarray(image))
    others = model([path, np.asarray(image), image, image.convert('RGBA')], batch_size=2)
    for other in others:
        np.testing.assert_allclose(other.boxes, by_file.boxes, atol=1e-4)
    assert others[1].path is None
    # Blue for red would be another picture.
    assert not np.array_equal(model(np.asarray(image)[..., ::-1]).scores, by_file.scores)
    # A phone's upright photograph, stored on its side.
    exif = Image.Exif()
    exif[0x112] = 6
    image.resize((64, 32)).save('side.png', exif=exif)
    assert model(Image.open('side.png')).image.shape == model('side.png').image.shape == (64, 32, 3)
    grey = np.asarray(image.convert('L'))
    assert model(grey).image.shape == (64, 64, 3)
    for wrong in np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8):
        with pytest.raises(UserError, match='an image is a path, a PIL image or an array'):
            model(wrong)
    for name, content in ('broken.jpg', b'\xff\xd8 no'), ('absent.jpg', None):
        if content:
            Path(name).write_bytes(content)
        with pytest.raises(UserError, match=f'image {name} cannot be loaded') as error:
            model(name)
        assert 'resume' not in str(error.value)


def test_panoptic(panoptic):
    weights = save_weights(panoptic, dataset_meta=dict(
        classes=['a', 'b', 'c', 'd', 'e', 'f', 'g'], thing_classes=['a', 'b', 'c', 'd'],
        stuff_classes=['e', 'f', 'g']))
    model = Predictor.from_checkpoint(panoptic, weights, 'cpu')
    model.model.panoptic_fusion_head.test_cfg.object_mask_thr = 0.
    image = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
    result = model(image)
    assert result.kind == 'panoptic' and result.ids.shape == (64, 80) and len(result)
    assert set(np.unique(result.ids)) - {-1} == set(range(len(result)))
    assert result.masks.shape == (len(result), 64, 80)
    assert result.names == ['abcdefg'[label] for label in result.labels]
    assert (result.draw() != image).any()
    model.model.panoptic_fusion_head.test_cfg.object_mask_thr = 1.
    nothing = model(image)
    assert len(nothing) == 0 and str(nothing) == 'nothing' and (nothing.draw() == image).all()


def test_names_and_colors(detection):
    """From the checkpoint, in whichever way it has them; else from the config."""
    def meta(**said):
        return Predictor.from_checkpoint(detection, save_weights(detection, **said), 'cpu').meta

    mine = meta(dataset_meta=dict(CLASSES=['cat', 'dog'], palette=[(1, 2, 3), (4, 5, 6)]))
    assert mine['classes'] == ('cat', 'dog') and mine['palette'][1] == (4, 5, 6)
    old = meta(CLASSES=('cat', 'dog'), PALETTE=None)
    assert old['classes'] == ('cat', 'dog') and len(set(old['palette'])) == 2
    assert meta()['classes'] == ('disc', 'square')
    # Names of another number of classes than the model's are not its own.
    assert meta(dataset_meta=dict(classes=['one']))['classes'] == ('disc', 'square')


def test_a_notebook(detection, coco):
    model = Predictor.from_checkpoint(detection, save_weights(detection), 'cpu')
    result = model(coco / 'val' / 'val0.jpg')
    result.scores[:] = 0.9
    assert result._repr_html_().startswith('<img alt="prediction" src="data:image/jpeg;base64,')
    assert f'{result}</div>' in result._repr_html_()
    picture = result.draw()
    assert picture.dtype == np.uint8 and (picture != result.image).any()
    assert (result.draw(score_thr=0.95) == result.image).all()


def test_tta_flips_and_merges(segmentation, ade):
    model = Predictor.from_checkpoint(segmentation, save_weights(segmentation), 'cpu', tta=True)
    image = np.asarray(Image.open(ade / 'images/val/0.jpg'))
    np.testing.assert_array_equal(model(image[:, ::-1]).labels, model(image).labels[:, ::-1])


def test_refused(detection, segmentation, tmp_path):
    weights = save_weights(detection)
    with pytest.raises(UserError, match='does not fit the model'):
        Predictor.from_checkpoint(segmentation, weights)
    with pytest.raises(UserError, match='there is no weight file absent.pth'):
        Predictor.from_checkpoint(detection, 'absent.pth')
    with pytest.raises(UserError, match='there is no config file absent.py'):
        Predictor.from_checkpoint('absent.py', weights)
    for device in 'cuda:99', 'toaster':
        with pytest.raises(UserError, match=f"device '{device}'"):
            Predictor.from_checkpoint(detection, weights, device)
    torch.save(dict(state_dict=torch.load(weights)['state_dict'], note=Path('x')), 'attack.pth')
    with pytest.raises(UserError, match='attack.pth holds more than weights'):
        Predictor.from_checkpoint(detection, 'attack.pth')
    plain = detection.with_name('plain.py')
    plain.write_text(f"_base_ = '{detection.name}'\ntta_model = None\n")
    with pytest.raises(UserError, match='no tta_model'):
        Predictor.from_checkpoint(plain, weights, tta=True)
    no_loader = detection.with_name('no_loader.py')
    no_loader.write_text(f"_base_ = '{detection.name}'\ntest_dataloader = dict(dataset=dict("
                         "pipeline=[dict(type='PackDetInputs')]))\n")
    with pytest.raises(UserError, match='loads no image'):
        Predictor.from_checkpoint(no_loader, weights)
    assert 'there is no image, video or folder' in refused(
        command('predict').main, detection, weights, tmp_path / 'nothing', '-o', 'out')


def test_importing_the_project_does_not_import_it():
    code = ('import sys, downstream; assert "Predictor" in downstream.__all__; '
            'assert not any("looking" in name for name in sys.modules); '
            'from downstream import Predictor; assert "downstream.looking.drawing" in sys.modules')
    subprocess.run([sys.executable, '-c', code], check=True, cwd=ROOT, capture_output=True)
