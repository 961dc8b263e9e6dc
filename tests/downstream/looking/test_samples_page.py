"""tools/check_data.py --config: samples as the network gets them, with labels that moved along."""
import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import command, refused
from mmengine.config import Config
from mmengine.runner import set_random_seed
from PIL import Image

from downstream.data.generated import make_demo_data
from downstream.looking.samples_page import DRAWS, Samples

pytestmark = pytest.mark.usefixtures('elsewhere')
ROOT = Path(__file__).resolve().parents[3]


def page_of(config, *args):
    """The page, and its pictures: (caption, RGB)."""
    command('check_data').main(['--config', str(config), '--report', 'page', *map(str, args)])
    page = Path('page/index.html').read_text()
    pictures = []
    for words, content in re.findall(
            r'<figcaption>([^<]*)</figcaption><img alt="[^"]*" src="data:image/webp;base64,(.*?)"',
            page):
        with Image.open(io.BytesIO(base64.b64decode(content))) as image:
            pictures.append((words, np.asarray(image.convert('RGB')).astype(int)))
    return page, pictures


def halves(coco):
    """Images that are green on the left, where the object is, and blue on the right."""
    image = np.zeros((64, 64, 3), np.uint8)
    image[:, :32, 1] = image[:, 32:, 2] = 200
    file = coco / 'annotations' / 'train.json'
    content = json.loads(file.read_text())
    for entry, annotation in zip(content['images'], content['annotations'], strict=True):
        Image.fromarray(image).save(coco / 'train' / entry['file_name'], quality=95)
        annotation.update(bbox=[4, 24, 20, 32], area=640,
                          segmentation=[[4, 24, 24, 24, 24, 56, 4, 56]])
    file.write_text(json.dumps(content))


def object_at(picture) -> np.ndarray:
    """Columns in which a mask's colour lies over the image, below its name."""
    return np.flatnonzero(picture[45:54, :, 0].mean(0) > 60)


@pytest.mark.parametrize('normalized', [False, True])
def test_labels_move_with_the_image(detection, coco, normalized, tmp_path):
    halves(coco)
    if normalized:
        text = detection.read_text().replace(
            'test_pipeline =', 'pipeline.insert(4, dict(type="Normalize", mean=[1., 2., 3.],'
            ' std=[4., 5., 6.], to_rgb=True))\ntest_pipeline =', 1)
        detection.write_text(text)
    page, pictures = page_of(detection)
    assert len(pictures) == 2 * (1 + DRAWS)
    assert ('(the pipeline) less the mean 1, 2, 3, divided by 4, 5, 6' in page) is normalized
    assert f'<td>channels</td><td>{"RGB" if normalized else "BGR, as OpenCV reads them"}' in page
    flips = set()
    for words, picture in pictures:
        flipped = 'flipped' in words
        flips.add(flipped)
        left, right = picture[4:12, 4:28].mean((0, 1)), picture[4:12, 36:60].mean((0, 1))
        green, blue = (right, left) if flipped else (left, right)
        assert green[1] > 150 > green[2] and blue[2] > 150 > blue[1]
        columns = object_at(picture)
        wanted = (40, 60) if flipped else (4, 24)
        assert abs(columns.min() - wanted[0]) <= 2 and abs(columns.max() - wanted[1]) <= 2
        assert 'as it is: 64 x 64' in words or '64 x 64' in words and '1 object' in words
    assert flips == {True, False}


def test_label_maps(segmentation, capsys):
    page, pictures = page_of(segmentation)
    assert 'nothing is wrong that a check can see' in capsys.readouterr().out
    assert '<td>padding</td><td>to 64 x 64</td>' in page and len(pictures) == 2 * (1 + DRAWS)
    # ADE20K's colours over noise: (120, 120, 120) for walls, (180, 120, 120) for buildings.
    for _, picture in pictures:
        found = picture[4:24, :30].mean((0, 1)), picture[4:24, 34:].mean((0, 1))
        assert found[1][0] - found[0][0] > 20 and abs(found[1] - found[0])[1:].max() < 12


def test_panoptic(tmp_path, monkeypatch):
    make_demo_data(tmp_path / 'demo', train=2, val=2, size=64)
    monkeypatch.setenv('DEMO_ROOT', str(tmp_path / 'demo'))
    page, pictures = page_of(ROOT / 'configs/demo/mask2former_panoptic_focalnet.py')
    assert '<p class="soft">Panoptic.' in page and 'LoadPanoptic' in page
    assert len(pictures) == 2 * (1 + DRAWS)
    # Grass, water and sand are drawn over: no picture is that of the file.
    name = pictures[0][0].split(',')[0]
    with Image.open(next((tmp_path / 'demo').rglob(f'train2017/{name}'))) as image:
        before = np.asarray(image.convert('RGB')).astype(int)
    assert (abs(pictures[0][1] - before).max(-1) > 25).mean() > 0.7


def test_another_image_in_place_of_one_that_is_cropped_away(detection, coco):
    halves(coco)
    content = json.loads((coco / 'annotations/train.json').read_text())
    content['annotations'][0]['bbox'] = [4, 4, 50, 50]
    (coco / 'annotations/train.json').write_text(json.dumps(content))
    cfg = Config.fromfile(detection)
    cfg.train_dataloader.dataset.pipeline.insert(2, dict(
        type='FilterAnnotations', min_gt_bbox_wh=(30, 30)))
    cfg.train_dataloader.dataset = dict(type='RepeatDataset', times=2,
                                        dataset=cfg.train_dataloader.dataset)
    samples = Samples(cfg)
    set_random_seed(0)
    assert len(samples.dataset) == 4
    assert 'train0.jpg, as it is' in samples.original(2)[0]
    assert 'train1.jpg, as it is' in samples.original(3)[0]
    assert 'since a step' not in samples.augmented(2)[0]
    assert samples.augmented(3)[0].endswith(
        'train0.jpg, since a step of the pipeline left nothing of this image')


def test_own_data_in_place_of_the_experiment_s(detection, coco):
    for split in ('train', 'val'):
        file = coco / 'annotations' / f'{split}.json'
        file.write_text(file.read_text().replace('disc', 'star'))
    message = refused(command('check_data').main, '--config', detection)  # as tools/train.py
    assert '1 of the classes are not among them: disc' in message
    page, pictures = page_of(detection, '--data', coco)
    assert len(pictures) == 2 * (1 + DRAWS) and "detection, COCO&#39;s layout" in page
    assert not Path('work_dirs').exists()


@pytest.mark.parametrize(('args', 'message'), [
    ([], 'say which data'),
    (['set', '--data', 'set'], 'give one of them'),
    (['--config', 'x.py', '--kind', 'detection'], 'the experiment says what kind'),
    (['set', '--cfg-options', 'a=1'], 'there is no --config'),
])
def test_flags_that_do_not_go(args, message):
    assert message in refused(command('check_data').main, *args)
