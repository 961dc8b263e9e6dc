"""tools/predict.py: what it writes, leaves out, and goes on with."""
import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from commands import command, refused, weights_of
from PIL import Image
from pycocotools.coco import COCO

from downstream.data.generated import make_demo_data
from downstream.data.panoptic import rgb_to_id
from downstream.looking import outputs

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures('elsewhere')
predict, score = command('predict').main, command('score').main


def run(*argv):
    predict([str(arg) for arg in (*argv, '--device', 'cpu')])


def stamp(folder) -> dict:
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob('*.*')
            if path.parts[1] in ('pictures', 'labels')}


def test_detections(detection, coco, capsys):
    """In COCO's format, for images in folders; as scored afterwards, by names."""
    weights = weights_of(detection)
    shutil.copytree(coco / 'val', 'photos/more')
    shutil.copy(coco / 'train/train0.jpg', 'photos/one.JPG')
    run(detection, weights, 'photos', '-o', 'out', '--batch', 2, '--score-thr', 0)
    assert '3 of 3 done' in capsys.readouterr().out
    pictures = sorted(path.as_posix() for path in Path('out/pictures').rglob('*.jpg'))
    assert pictures == ['out/pictures/more/val0.jpg', 'out/pictures/more/val1.jpg',
                        'out/pictures/one.jpg']
    assert Image.open(pictures[0]).size == (64, 64)
    images = json.loads(Path('out/images.json').read_text())
    assert {i['file_name'] for i in images['images']} == {
        'more/val0.jpg', 'more/val1.jpg', 'one.JPG'}
    assert [c['name'] for c in images['categories']] == ['disc', 'square']
    rows = json.loads(Path('out/predictions.json').read_text())
    assert {row['image_id'] for row in rows} <= {image['id'] for image in images['images']}
    assert {row['category_id'] for row in rows} <= {1, 2}
    loaded = COCO()
    loaded.dataset = images
    loaded.createIndex()
    loaded = loaded.loadRes(rows)  # pycocotools takes them
    one = loaded.loadAnns(loaded.getAnnIds())[0]
    assert loaded.annToMask(dict(one, image_id=one['image_id'])).shape == (64, 64)

    # The file of another folder: not of the annotations.
    message = refused(score, 'out', '--config', detection)
    assert 'results of other images: 1 of 3' in message and 'one.JPG' in message
    run(detection, weights, coco / 'val/val1.jpg', '-o', 'val', '--no-pictures')
    assert 'has no results of 1 of the 2 images of the test_dataloader: val0.jpg' in refused(
        score, 'val', '--config', detection)
    run(detection, weights, coco / 'val', '-o', 'val', '--no-pictures')
    assert not Path('val/pictures').exists()
    capsys.readouterr()
    score(['val', '--config', str(detection)])
    assert re.search(r'\| *disc *\|', table := capsys.readouterr().out) and 'box AP' in table
    assert 'mask AP75' in table


def test_goes_on(segmentation, ade, monkeypatch, capsys):
    """Stopped in the middle; changed files and --fresh are done again, others not."""
    weights = weights_of(segmentation)
    shutil.copytree(ade / 'images', 'images')
    names = [path.relative_to('images').with_suffix('').as_posix()
             for path in sorted(Path('images').rglob('*.jpg'))]
    write, calls = outputs.Output.write, []

    def stop(self, found, name):
        calls.append(name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return write(self, found, name)

    monkeypatch.setattr(outputs.Output, 'write', stop)
    with pytest.raises(SystemExit) as stopped:
        run(segmentation, weights, 'images', '-o', 'out')
    assert stopped.value.code == 130 and 'the same command goes on' in capsys.readouterr().err
    monkeypatch.setattr(outputs.Output, 'write', write)
    with open('out/journal.jsonl', 'a') as file:
        file.write('{"name": "cut o')
    before = stamp('out')
    assert len(before) == 2 + 3  # label maps and pictures, of which the last has no label map
    run(segmentation, weights, 'images', '-o', 'out')
    after = stamp('out')
    assert len(after) == 8
    assert [path.as_posix() for path in before if before[path] != after[path]] == [
        f'out/pictures/{names[2]}.jpg']
    label_map = Image.open(f'out/labels/{names[0]}.png')
    assert label_map.mode == 'L' and set(np.unique(label_map)) <= {1, 2}  # ADE20K counts from 1

    Image.fromarray(np.zeros((32, 48, 3), np.uint8)).save(f'images/{names[1]}.jpg')
    run(segmentation, weights, 'images', '-o', 'out')
    assert Image.open(f'out/labels/{names[1]}.png').size == (48, 32)
    assert {path: time for path, time in stamp('out').items() if names[1] not in str(path)} == {
        path: time for path, time in after.items() if names[1] not in str(path)}
    weights_of(segmentation, 'other.pth')
    message = refused(predict, segmentation, 'other.pth', 'images', '-o', 'out')
    assert 'predictions of another command (checkpoint: weights.pth' in message
    assert '--fresh' in message
    run(segmentation, 'other.pth', 'images', '-o', 'out', '--fresh')
    assert all(time != after[path] for path, time in stamp('out').items())


def test_broken_files_are_named(detection, coco, capsys):
    weights = weights_of(detection)
    broken = coco / 'val' / 'broken.jpg'
    broken.write_bytes((coco / 'val' / 'val0.jpg').read_bytes()[:500])
    (coco / 'val' / 'film.mp4').write_bytes(b'no film')
    with pytest.raises(SystemExit) as stop:
        run(detection, weights, coco / 'val', '-o', 'out', '--batch', 2)
    assert stop.value.code.count('skipped: ') == 2
    assert f'image {broken} cannot be loaded' in stop.value.code
    assert 'film.mp4 cannot be read' in stop.value.code and 'resume' not in stop.value.code
    assert '2 of 4 done' in capsys.readouterr().out
    assert len(list(Path('out/pictures').iterdir())) == 2
    # Put right, the same command does what was missing.
    shutil.copy(coco / 'val' / 'val0.jpg', broken)
    (coco / 'val' / 'film.mp4').unlink()
    run(detection, weights, coco / 'val', '-o', 'out', '--batch', 2)
    assert len(json.loads(Path('out/images.json').read_text())['images']) == 3


def test_video(detection, coco):
    film = cv2.VideoWriter('film.avi', cv2.VideoWriter_fourcc(*'MJPG'), 5., (64, 48))
    if not film.isOpened():
        pytest.skip('this OpenCV encodes no Motion JPEG')
    for level in range(7):
        film.write(np.full((48, 64, 3), 30 * level, np.uint8))
    film.release()
    weights = weights_of(detection)
    run(detection, weights, 'film.avi', coco / 'val/val0.jpg', '-o', 'out', '--batch', 3,
        '--score-thr', 2)
    drawn, = Path('out/pictures').glob('film.*')
    capture = cv2.VideoCapture(str(drawn))
    assert capture.get(cv2.CAP_PROP_FPS) == 5
    frames = []
    while (read := capture.read())[0]:
        frames.append(read[1])
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 7
    # Nothing is drawn on them: each is its own, in order.
    assert [round(frame.mean() / 30) for frame in frames] == list(range(7))
    names = [image['file_name'] for image in json.loads(Path('out/images.json').read_text())[
        'images']]
    assert sorted(names) == [*(f'film/{i:06}.png' for i in range(7)), 'val0.jpg']
    before = drawn.stat().st_mtime_ns
    run(detection, weights, 'film.avi', coco / 'val/val0.jpg', '-o', 'out', '--score-thr', 2)
    assert drawn.stat().st_mtime_ns == before


def test_a_film_that_was_stopped_begins_anew(segmentation, monkeypatch):
    film = cv2.VideoWriter('film.avi', cv2.VideoWriter_fourcc(*'MJPG'), 5., (64, 64))
    if not film.isOpened():
        pytest.skip('this OpenCV encodes no Motion JPEG')
    for level in range(3):
        film.write(np.full((64, 64, 3), level, np.uint8))
    film.release()
    weights = weights_of(segmentation)
    write, calls = outputs.Output.write, []

    def stop(self, found, name):
        calls.append(name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(self, found, name)

    monkeypatch.setattr(outputs.Output, 'write', stop)
    with pytest.raises(SystemExit):
        run(segmentation, weights, 'film.avi', '-o', 'out')
    assert not list(Path('out/pictures').glob('film.[ma]*'))  # only a part
    run(segmentation, weights, 'film.avi', '-o', 'out')
    assert len(calls) == 2 + 3 and list(Path('out/pictures').glob('film.[ma]*'))
    assert len(list(Path('out/labels/film').iterdir())) == 3
    lines = Path('out/journal.jsonl').read_text().splitlines()
    assert len(lines) == 1 + 3 + 1


def test_panoptic(tmp_path, monkeypatch):
    """In COCO's format, the same as from tools/test.py --format-only."""
    make_demo_data(tmp_path / 'data', train=1, val=3, size=64)
    monkeypatch.setenv('DEMO_ROOT', str(tmp_path / 'data'))
    config = ROOT / 'configs' / 'demo' / 'mask2former_panoptic_focalnet.py'
    weights = weights_of(config)
    options = ['--cfg-options', 'model.test_cfg.object_mask_thr=0.', 'model.test_cfg.iou_thr=0.']
    run(config, weights, tmp_path / 'data/coco/val2017', '-o', 'out', *options)
    content = json.loads(Path('out/panoptic.json').read_text())
    assert [i['id'] for i in content['images']] == [100001, 100002, 100003]  # as in the names
    assert [c['isthing'] for c in content['categories']] == [1] * 4 + [0] * 3
    for annotation in content['annotations']:
        ids = rgb_to_id(np.asarray(Image.open(Path('out/panoptic', annotation['file_name']))))
        assert set(np.unique(ids)) - {0} == {s['id'] for s in annotation['segments_info']}
    assert any(annotation['segments_info'] for annotation in content['annotations'])
    # The same as the test of the same images writes for COCO's server, without their annotations.
    shutil.rmtree(tmp_path / 'data/coco/annotations/panoptic_val2017')
    file = tmp_path / 'data/coco/annotations/panoptic_val2017.json'
    listed = json.loads(file.read_text())
    file.write_text(json.dumps({key: listed[key] for key in ('images', 'categories')}))
    command('test').main([
        str(config), weights, '--work-dir', 'run', '--format-only', 'theirs', *options,
        'test_dataloader.num_workers=0', 'test_dataloader.persistent_workers=False'])
    theirs = json.loads(Path('theirs/panoptic.json').read_text())
    assert theirs['annotations'] == content['annotations']
    assert theirs['images'] == content['images'] and theirs['categories'] == content['categories']
    for path in Path('out/panoptic').iterdir():
        assert path.read_bytes() == Path('theirs/panoptic', path.name).read_bytes()
    assert not list(Path('run').glob('*/test_record.json'))  # there is no score to record
