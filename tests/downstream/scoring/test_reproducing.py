"""A released model is fetched, scored, compared and entered; a quick look says how sure it is."""
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import TOOLS, command, refused, weights_of
from mmengine.config import Config

from backbones import download, weights
from downstream.errors import UserError
from downstream.scoring import ledger as book
from downstream.scoring import reproducing
from downstream.scoring.predictions import build_dataset, score
from downstream.scoring.reproducing import (
    chosen,
    experiments,
    few_images,
    interval,
    reproduce,
    subprocess_test,
    verdict,
    weighted_scores,
)

NAME = 'tiny_maskrcnn'
METAFILE = '''
Papers: []
Collections:
  - Name: Mask R-CNN
Models:
  - Name: {name}
    In Collection: Mask R-CNN
    Config: configs/{name}.py
    Metadata: {{}}
    Source: the authors' README
    Results:
      - Task: Object Detection
        Dataset: COCO val2017
        Metrics:
          box AP: {published}
'''
README = f'# Readme\n{book.BEGIN}\n{book.END}\n'


def in_process(config, checkpoint, *flags):
    command('test').main([str(config), str(checkpoint), *flags])


@pytest.fixture
def released(detection, server, tmp_path, monkeypatch, elsewhere):
    """A project with one experiment, whose released file is on a server: all its objects found."""
    (tmp_path / 'docs').mkdir()
    (tmp_path / 'README.md').write_text(README)
    metafile = tmp_path / 'metafile.yml'
    monkeypatch.setattr(book, 'ROOT', tmp_path)
    monkeypatch.setattr(book, 'METAFILE', metafile)
    monkeypatch.setattr(book, 'WHOLE', dict(book.WHOLE, COCO=2))
    monkeypatch.setattr(reproducing, 'CONFIGS', tmp_path)
    # few boxes of a random model hit anything; all of them count
    server.files['/w.pth'] = Path(weights_of(detection)).read_bytes()
    entry = dict(sources=[f'{server.url}/w.pth'], config=NAME)
    monkeypatch.setattr(weights, 'known', lambda: {NAME: entry})

    def publish(number):
        metafile.write_text(METAFILE.format(name=NAME, published=number))
    server.publish, server.entry, server.metafile = publish, entry, metafile
    publish(0)
    return server


def test_from_the_server_to_the_ledger(released, tmp_path):
    """In a process of its own, as the command does it; then again: nothing is fetched twice."""
    result = reproduce(NAME, tmp_path / 'out', subprocess_test(TOOLS, 1))
    measured = book.load(released.metafile)['Models'][0]['Measured'][0]
    assert measured['Released'] == NAME and measured['Deviations'] == []
    assert measured['Checkpoint'].startswith('w.pth, sha256 ')
    value = measured['Metrics']['box AP']
    assert result.met == (value <= 0.1) and f'box AP {value} (published 0)' in result.line
    page = (tmp_path / 'docs/results.md').read_text()
    assert '## Released models, scored here' in page and f'box AP 0 / {value}' in page
    assert book.readme_tables(book.load(released.metafile)) in (tmp_path / 'README.md').read_text()

    released.publish(60)
    result = reproduce(NAME, tmp_path / 'again', in_process)
    assert not result.met
    assert f'not reproduced: box AP {value} (published 60): off in' in result.line
    assert released.paths == ['/w.pth']


def test_a_quick_look(released, tmp_path):
    """It leaves the ledger alone; the score is the one of the images that were looked at."""
    before = released.metafile.read_text()
    result = reproduce(NAME, tmp_path / 'out', in_process, images=2)
    record, = (tmp_path / 'out').glob('*/test_record.json')
    record = json.loads(record.read_text())
    value = 100 * record['metrics']['coco/bbox_mAP']
    assert (f'{NAME}: a quick look at 2 images, not entered in the ledger: box AP {value:.1f} '
            '(95 % interval ') in result.line
    assert released.metafile.read_text() == before and not (tmp_path / 'docs/results.md').exists()
    with pytest.raises(UserError, match='--images 3: there are 2, and at least 2 are needed'):
        reproduce(NAME, tmp_path / 'out', in_process, images=3)


def test_what_cannot_be_scored(released, tmp_path, monkeypatch, coco):
    def fails(match, name=NAME, kind=UserError):
        with pytest.raises(kind, match=match):
            reproduce(name, tmp_path / 'out', None)

    fails('the metafile has no experiment other', 'other')
    released.entry['sources'] = ['http://127.0.0.1:1/w.pth']
    fails('cannot be fetched here(.|\n)*put the file, with its suffix, into the folder',
          kind=ValueError)
    shutil.rmtree(coco / 'val')
    fails(r'val/ \(data_prefix.img\) does not exist')  # before anything is fetched
    released.entry['config'] = 'other'
    fails('its number can only be met by training')
    monkeypatch.setattr(book, 'published', lambda entry: {})
    fails('no number was published')


def test_all_released(released, tmp_path, monkeypatch, capsys):
    """One that cannot be fetched does not keep the others from being scored."""
    tool = command('reproduce')
    entries = book.load(released.metafile)
    assert experiments(entries) == [NAME]
    released.entry['sources'] = ['http://127.0.0.1:1/w.pth']
    with pytest.raises(SystemExit) as stop:
        tool.main(['--all-released', '--work-dir', str(tmp_path / 'out')])
    assert stop.value.code == 1
    assert f'{NAME}: not scored: {NAME} cannot be fetched here:' in capsys.readouterr().out
    assert 'the metafile has no experiment x' in refused(tool.main, 'x')


def test_a_file_that_was_tampered_with_does_not_keep_the_others_from_being_scored(tmp_path):
    file = tmp_path / 'w.pth'
    file.write_bytes(b'other')

    def run(name):
        if name == 'one':
            download.verify(file, '00000000', 'w.pth')
        return reproducing.Verdict(f'{name}: reproduced', True)

    lines, met = reproducing.run_all(['one', 'two'], run)
    assert lines[0].startswith('one: not scored: w.pth is not the file that was expected')
    assert lines[1] == 'two: reproduced' and not met

    def broken(name):
        raise ValueError('a mistake of ours, which nobody can put right by fetching')

    with pytest.raises(ValueError, match='a mistake of ours'):
        reproducing.run_all(['one'], broken)


def record(**changes):
    return {**dict(
        experiment=NAME, metrics={'coco/bbox_mAP': 0.5849, 'coco/bbox_mAP_50': 0.7}, images=5000,
        tta=False, deviations=[], test_deviations=[], checkpoint='x.pth, sha256 01234567',
        date='2026-12-01', machine='8 x GPU', command='tools/test.py ...', released=NAME),
        **changes}


@pytest.mark.parametrize('ap, changes, met, fragments', [
    (0.5849, {}, True, ['reproduced: box AP 58.49 (published 58.5)']),
    (0.5861, {}, False, ['off in box AP by +0.11', 'published with: detrex', 'torch 2.']),
    (0.5839, dict(machine='CPU (x86_64, 2 cores)'), False, ['by -0.11', 'a CPU rounds otherwise']),
    (0.5849, dict(images=4990), False, ['it: scored on 4990 of 5000 images; other software']),
    (0.59, dict(tta=True), False, ['test-time augmentation']),
    (0.58, dict(test_deviations=['scale 400, not 800']), False, ['it: scale 400, not 800;']),
])
def test_verdicts(ap, changes, met, fragments):
    entry = dict(Source="detrex's model zoo", Results=[dict(Metrics={'box AP': 58.5})])
    found = verdict(NAME, entry, record(metrics={'coco/bbox_mAP': ap}, **changes))
    assert found.met == met
    assert all(fragment in found.line for fragment in fragments), found.line
    assert '\n' not in found.line


def test_only_what_was_published_is_compared():
    entry = dict(Source='x', Results=[dict(Metrics={'mIoU (ms+flip)': 47.8})])
    with pytest.raises(UserError, match=r'mIoU was measured \(--tta\)'):
        verdict(NAME, entry, record(metrics={'mIoU': 46.8}, images=2000))


def test_chosen_images_are_always_the_same():
    assert chosen(range(5000), 200) == chosen(range(5000), 200) != list(range(200))
    assert len(set(chosen(range(5000), 200))) == 200


def test_intervals():
    """Of a mean they are known: its standard error times 1.96."""
    values = np.random.default_rng(1).normal(50, 10, 400)
    mean, (low, high) = interval(lambda weights: weights @ values / weights.sum(), 400)
    assert mean == pytest.approx(values.mean())
    error = values.std() / 20
    assert low == pytest.approx(mean - 1.96 * error, abs=0.15)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.15)


def boxes_of(dataset, rng):
    """Predictions near the truth, with misses, doubles and false ones."""
    predictions = []
    for i in range(len(dataset)):
        info = dataset.get_data_info(i)
        true = torch.tensor([each['bbox'] for each in info['instances']])
        labels = torch.tensor([each['bbox_label'] for each in info['instances']])
        moved = torch.cat([true, true, true]) + torch.tensor(
            rng.normal(0, 6, (3 * len(true), 4)), dtype=torch.float)
        predictions.append(dict(
            img_id=info['img_id'], img_path=info['img_path'], ori_shape=(64, 64),
            pred_instances=dict(bboxes=moved, labels=torch.cat([labels, labels, 1 - labels]),
                                scores=torch.tensor(rng.random(len(moved))))))
    return predictions


def test_weighted_ap_is_cocos(detection, coco, elsewhere):
    """Each image once: the AP of COCO. One of them twice: the AP of a set that has it twice."""
    path = coco / 'annotations/val.json'
    content = json.loads(path.read_text())

    def scored(repeats):
        """Of a set with image i repeats[i] times."""
        images, annotations, found = [], [], []
        for i, times in enumerate(repeats):
            for copy in range(times):
                images.append(dict(content['images'][i], id=10 * i + copy))
                annotations.append(dict(content['annotations'][i], id=10 * i + copy + 1,
                                        image_id=10 * i + copy))
                found.append(dict(predictions[i], img_id=10 * i + copy))
        path.write_text(json.dumps(dict(content, images=images, annotations=annotations)))
        cfg = Config.fromfile(detection)
        cfg.test_evaluator.metric = ['bbox']
        dataset = build_dataset(cfg)
        return cfg, dataset, found

    # more objects, so that there are curves
    rng = np.random.default_rng(0)
    dataset = build_dataset(Config.fromfile(detection))
    predictions = boxes_of(dataset, rng)
    for repeats in ((1, 1), (2, 1), (1, 3)):
        cfg, dataset, found = scored(repeats)
        expected = score(cfg, dataset, found, 'x').overall['box AP']
        assert 0 < expected < 100
        cfg, dataset, once = scored((1, 1))
        weighted = weighted_scores(cfg, once, False)['box AP']
        assert weighted(np.array(repeats)) == pytest.approx(expected, abs=1e-9)


def test_weighted_miou(segmentation, ade, elsewhere):
    cfg = Config.fromfile(segmentation)
    dataset = build_dataset(cfg)
    rng = np.random.default_rng(0)
    predictions = [dict(img_path=dataset.get_data_info(i)['img_path'], pred_sem_seg=dict(
        data=torch.tensor(rng.integers(0, 2, (1, 64, 64))))) for i in range(2)]
    expected = score(cfg, dataset, predictions, 'x').overall['mIoU']
    weighted = weighted_scores(cfg, predictions, False)['mIoU']
    assert weighted(np.ones(2)) == pytest.approx(expected)
    assert weighted(np.array([2, 0])) != pytest.approx(expected)


def test_a_quick_look_at_segmentation(segmentation, ade, elsewhere, tmp_path, monkeypatch):
    """A part of the images by their numbers; the score is that of the test."""
    cfg = Config.fromfile(segmentation)
    with pytest.raises(UserError, match='--images: takes a part of COCO or ADE20K, not what Panop'):
        few_images(Config(dict(cfg.to_dict(), test_evaluator=dict(type='PanopticQuality'))), 2,
                   tmp_path)
    for i in range(2):
        shutil.copy(ade / 'images/val/0.jpg', ade / f'images/val/more{i}.jpg')
        shutil.copy(ade / 'labels/val/0.png', ade / f'labels/val/more{i}.png')
    weights_of(segmentation)
    name = segmentation.stem
    entry = dict(Name=name, Source='x', Results=[dict(Metrics={'mIoU': 46.8})])
    monkeypatch.setattr(reproducing, 'look_up', lambda *_: (entry, name))
    monkeypatch.setattr(reproducing, 'fetch_named', lambda _: Path('weights.pth'))
    monkeypatch.setattr(reproducing, 'CONFIGS', tmp_path)
    result = reproduce(name, tmp_path / 'out', in_process, images=3)
    record, = (json.loads(path.read_text()) for path in (tmp_path / 'out').glob('*/test_*.json'))
    assert record['images'] == 3
    assert f'mIoU {record["metrics"]["mIoU"]:.1f} (95 %' in result.line
