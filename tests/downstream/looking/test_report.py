"""tools/report.py: the right numbers, in a page that needs no network and fits a phone."""
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import command
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import METRICS
from pycocotools.mask import encode

from downstream.data.generated import make_demo_data
from downstream.errors import UserError
from downstream.looking import charts, report
from downstream.looking.pictures import panoptic_sample
from downstream.scoring.predictions import build_dataset, load_predictions, score

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures('elsewhere')


def page_of(*args) -> str:
    command('report').main([*map(str, args), '-o', 'report'])
    assert os.listdir('report') == ['index.html']
    return Path('report/index.html').read_text()


def rows_of(page: str) -> dict[str, list[str]]:
    """{first cell: other cells} of all tables, as text."""
    rows = {}
    for row in re.findall(r'<tr>(.*?)</tr>', page, re.DOTALL):
        cells = [re.sub(r'<.*?>', '', cell).strip()
                 for cell in re.findall(r'<td.*?</td>', row, re.DOTALL)]
        if cells:
            rows.setdefault(cells[0], cells[1:])
    return rows


def work_dir(config: Path, name='run', scores=None, **options) -> Path:
    """What a training run leaves, without the training: two sessions, the second resumed.

    Args:
        scores: of each session's one validation, {name: value}, if not the main one's alone.
    """
    cfg = Config.fromfile(config)
    cfg.merge_from_dict(options)
    folder = Path(name)
    sessions = ('20260101_000000', 0), ('20260101_010000', 10)
    for number, (session, first) in enumerate(sessions):
        vis_data = folder / session / 'vis_data'
        vis_data.mkdir(parents=True)
        cfg.dump(vis_data / 'config.py')
        rows = [dict(loss=10. + first, loss_cls=4., lr=0.1, step=step, iter=step, epoch=step // 10)
                for step in range(first + 5, first + 25, 5)]
        key = 'coco/bbox_mAP' if cfg.default_scope == 'mmdet' else 'mIoU'
        found = scores[number] if scores else {key: 0.01 * (first + 1)}
        rows.insert(2, {**found, 'step': rows[1]['epoch'], 'time': 0.1})
        (vis_data / 'scalars.json').write_text('\n'.join(map(json.dumps, rows)) + '\n{"loss": 1')
        (folder / session / f'{session}.log').write_text(
            '2026/01/01 00:00:00 - mmengine - INFO - \n' + '-' * 60 + '\nSystem environment:\n'
            '    PyTorch: 9.9.9\n    PyTorch compiling details: long\n\nRuntime environment:\n'
            '    seed: 42\n' + '-' * 60 + '\n\n2026/01/01 01:30:00 - mmengine - INFO - end\n')
    return folder


def found(number: int, *boxes, image=(64, 64)) -> dict:
    """A prediction for val{number}.jpg: boxes (label, score, x1, y1, x2, y2), filled as masks."""
    masks = np.zeros((*image, len(boxes)), np.uint8, order='F')
    for i, (_, _, x1, y1, x2, y2) in enumerate(boxes):
        masks[y1:y2, x1:x2, i] = 1
    return dict(
        img_id=number, img_path=f'/elsewhere/val{number}.jpg', ori_shape=image,
        pred_instances=dict(
            labels=torch.tensor([box[0] for box in boxes], dtype=torch.long),
            scores=torch.tensor([box[1] for box in boxes], dtype=torch.float),
            bboxes=torch.tensor([box[2:] for box in boxes]).reshape(-1, 4).float(),
            masks=encode(masks)))


PERFECT = [found(0, (0, 0.9, 8, 8, 48, 48)), found(1, (1, 0.9, 8, 8, 48, 48))]
# The second image: the right box, less sure than a wrong one, and one that is not shown.
FAULTY = [PERFECT[0], found(1, (0, 0.95, 8, 8, 48, 48), (1, 0.8, 8, 8, 48, 44),
                            (1, 0.2, 0, 0, 9, 9))]


def save(predictions, path):
    Path(path).write_bytes(pickle.dumps(predictions, protocol=2))  # as mmengine does


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_a_real_run(task, request):
    """Trained, resumed and tested with the tools; the same class scores as in the log."""
    config = request.getfixturevalue(task)
    train, score_tool = command('train').main, command('test').main
    for iterations in 2, 4:
        time.sleep(1.01 - time.time() % 1)  # mmengine names runs by the second
        train([str(config), '--work-dir', 'run', '--resume', '--allow-changes', '--cfg-options',
               f'train_cfg.max_iters={iterations}'])
    time.sleep(1.01 - time.time() % 1)
    classwise = ['--cfg-options', 'test_evaluator.classwise=True'] if task == 'detection' else []
    score_tool([str(config), 'run/iter_4.pth', '--work-dir', 'run/test', '--out',
                'run/results.pkl', *classwise])
    page, rows = page_of('run'), rows_of(Path('report/index.html').read_text())

    log = next(Path('run/test').glob('*/*.log')).read_text()
    for name in ('disc', 'square') if task == 'detection' else ('wall', 'building'):
        logged = float(re.search(rf'\| *{name} *\| *([\d.]+) ', log)[1])
        assert float(rows[name][0]) == pytest.approx(
            100 * logged if task == 'detection' else logged, abs=0.051)
    assert '4 of 4 iterations' in page and '2 sessions' in page
    assert {'MMEngine', 'PyTorch', 'seed'} <= rows.keys()
    assert len(re.findall('<svg ', page)) >= 4 and page.count('data:image/webp') == 4
    assert not re.search(r'\b(?:src|href|srcset|action)="(?!#|data:)|url\((?!["\']?[#d])|@import',
                         page)
    assert len(page) < 10e6


def test_joins_what_was_resumed(detection):
    folder = work_dir(detection)
    torch.save(dict(meta=dict(mmengine_version='0.10.12' + 'b1' * 20), state_dict=dict(
        weight=torch.zeros(1))), folder / 'epoch_2.pth')
    (folder / 'last_checkpoint').write_text('/another/machine/run/epoch_2.pth')
    run = report.Run(folder)
    # Two sessions of 4 losses and a score each, the second from iteration 15 on; 10 an epoch.
    assert [(row['at'], row['loss']) for row in run.train] == [
        (5, 10), (10, 10), (15, 20), (20, 20), (25, 20), (30, 20)]
    assert [(row['at'], row['when'], row['coco/bbox_mAP']) for row in run.val] == [
        (10, 'epoch 1', 1.), (20, 'epoch 2', 11.)]
    assert run.best is run.val[1] and run.wall_time == '3 h 0 min'
    assert run.environment == {'PyTorch': '9.9.9', 'seed': '42', 'git commit': 'b1' * 20}
    assert ' run/epoch_2.pth ' in run.test_command


def test_perfect_predictions(detection):
    folder = work_dir(detection)
    save(PERFECT, folder / 'results.pkl')
    page = page_of(folder)
    assert rows_of(page)['disc'] == rows_of(page)['square'] == ['100.0'] * 6
    assert page.count('F1 100 %: 1 right, 0 spurious, 0 missed') == 2


def test_faulty_predictions(detection):
    """As scored by mmdet itself; the worst image first."""
    folder = work_dir(detection, **{'test_evaluator.classwise': True})
    save(FAULTY, folder / 'results.pkl')
    page = page_of(folder, '--images', '1')
    words = re.findall(r'<b>(.*?)</b><br>(.*?)</figcaption>', page)
    assert words == [('F1 67 %: 1 right, 1 spurious, 0 missed', 'val1.jpg'),
                     ('F1 100 %: 1 right, 0 spurious, 0 missed', 'val0.jpg')]

    cfg = report.Run(folder).cfg
    metric = METRICS.build(cfg.test_evaluator)
    MMLogger.get_instance('report')
    metric.dataset_meta = dict(classes=('disc', 'square'))
    metric.process({}, load_predictions(folder / 'results.pkl'))
    metric.metrics = ['bbox']
    theirs = metric.compute_metrics(metric.results)
    for name in 'disc', 'square':
        assert 0 < theirs[f'{name}_precision'] < 1
        assert float(rows_of(page)[name][0]) == pytest.approx(
            100 * theirs[f'{name}_precision'], abs=0.051)


def test_nothing_found(detection):
    folder = work_dir(detection)
    save([found(0), found(1)], folder / 'results.pkl')
    page = page_of(folder)
    assert rows_of(page)['disc'] == ['0.0'] * 6 and 'F1 0 %: 0 right, 0 spurious, 1 miss' in page


def test_segmentation_by_hand(segmentation):
    """Half of the left half taken for the right one, in the second image."""
    folder = work_dir(segmentation)
    maps = torch.zeros(2, 1, 64, 64, dtype=torch.long)
    maps[..., 32:] = 1
    maps[1, :, :32, :32] = 1
    save([dict(img_path=f'/elsewhere/{i}.jpg', pred_sem_seg=dict(data=maps[i])) for i in range(2)],
         folder / 'out.pickle')
    (folder / 'out.pickle').rename(folder / 'results.pkl')
    cfg = report.Run(folder).cfg
    scores = score(cfg, build_dataset(cfg), load_predictions(folder / 'results.pkl'), 'it')
    assert scores.confusion.tolist() == [[3072, 1024], [0, 4096]]
    assert scores.classes['wall']['IoU'] == pytest.approx(75)
    assert scores.classes['building'] == pytest.approx({'IoU': 80, 'accuracy': 100})
    assert [image for image, _ in scores.images] == pytest.approx([100, (50 + 200 / 3) / 2])
    page = page_of(folder)
    assert page.index('<figcaption><b>mIoU 58.3 %</b><br>1.jpg') < page.index(
        '<figcaption><b>mIoU 100.0 %</b><br>0.jpg')
    assert rows_of(page)['wall'] == ['75.0', '75.0'] and '<td>wall</td><td>building</td>' in page


def test_panoptic(tmp_path, monkeypatch):
    """As scored by the run's own metric; an image with two labels exchanged is worse."""
    monkeypatch.setenv('DEMO_ROOT', str(tmp_path / 'data'))
    make_demo_data(tmp_path / 'data', train=2, val=3)
    folder = work_dir(ROOT / 'configs' / 'demo' / 'mask2former_panoptic_focalnet.py')
    cfg = report.Run(folder).cfg
    dataset, predictions = build_dataset(cfg), []
    for i in range(3):
        info = dataset.get_data_info(i)
        nothing = dict(pred_panoptic_seg=dict(sem_seg=torch.full((1, 160, 160), 7)))
        seg = torch.from_numpy(panoptic_sample(dataset, i, nothing).gt_panoptic_seg.sem_seg)
        if i == 1:  # a shape becomes a disc, or a disc a square; half of the image is not found
            shape = seg[seg % 1000 < 4][0]
            seg[seg == shape] = shape - shape % 1000 + int(shape % 1000 == 0)
            seg[:, :, 80:] = 7
        predictions.append(dict(img_id=info['img_id'], img_path=info['img_path'],
                                ori_shape=(160, 160), pred_panoptic_seg=dict(sem_seg=seg)))
    save(predictions, folder / 'results.pkl')
    page = page_of(folder)
    metric = METRICS.build(cfg.test_evaluator)
    metric.dataset_meta = dataset.metainfo
    MMLogger.get_instance('report')
    metric.process({}, predictions)
    theirs = metric.evaluate(3)
    assert 20 < theirs['coco_panoptic/PQ'] < 95
    assert f'PQ&nbsp;{theirs["coco_panoptic/PQ"]:.1f}, ' in page
    assert f'PQ stuff&nbsp;{theirs["coco_panoptic/PQ_st"]:.1f}, ' in page
    ranked = re.findall(r'<b>PQ ([\d.]+) %.*?</b><br>(.*?)</figcaption>', page)
    assert ranked[0][1] == Path(predictions[1]['img_path']).name
    assert [score for score, _ in ranked[1:]] == ['100.0', '100.0']


def test_two_runs(detection):
    """Only what differs, and the command for what is not there."""
    first = work_dir(detection, 'first')
    second = work_dir(detection, 'second', **{'optim_wrapper.optimizer.lr': 0.5,
                                              'model.neck.extra': (1, 2)})
    save(PERFECT, first / 'results.pkl')
    page = page_of(first, second)
    differences = report.config_differences([report.Run(first).cfg, report.Run(second).cfg])
    assert differences == {'model.neck.extra': [None, '[1, 2]'],
                           'optim_wrapper.optimizer.lr': ['0.001', '0.5']}
    assert rows_of(page)['optim_wrapper.optimizer.lr'] == ['0.001', '0.5']
    # No model of the second can be built: the page says so and has the rest.
    assert 'second: The model cannot be built here' in page
    assert ('tools/test.py second/20260101_010000/vis_data/config.py CHECKPOINT --work-dir '
            'second/test --out second/results.pkl') in page


def charts_of(*folders) -> set[str]:
    """The scores by which a page compares runs."""
    runs = [report.Run(folder) for folder in folders]
    for run in runs:
        run.color = charts.COLORS[0]
    titles = [title for title, *_ in charts.curve_charts(runs)]
    return {title.split(': ')[1] for title in titles if title.startswith('Validation: ')}


# As mmseg, mmdet and the panoptic evaluator log them: (task, scores, the main one of each chart).
LOGGED = [
    ('segmentation', ('aAcc', 'mIoU', 'mAcc'), {'mIoU'}),
    ('detection', ('coco/segm_mAP_50', 'coco/segm_mAP', 'coco/bbox_mAP_50', 'coco/bbox_mAP'),
     {'coco/bbox_mAP', 'coco/segm_mAP'}),
    ('detection', ('coco_panoptic/PQ_st', 'coco_panoptic/PQ_th', 'coco_panoptic/PQ'),
     {'coco_panoptic/PQ'})]


@pytest.mark.parametrize('task, names, charts', LOGGED)
def test_the_main_score(task, names, charts, request):
    """It is what several runs are compared by, and what says which validation was the best."""
    config = request.getfixturevalue(task)
    # all but the main score get worse
    scores = [{name: 0.5 for name in names}, {name: 0.1 for name in names}]
    main = sorted(charts)[0]
    scores[1][main] = 0.9
    runs = [work_dir(config, name, scores) for name in ('first', 'second')]
    run = report.Run(runs[0])
    assert run.main == main and run.best is run.val[1]
    assert charts_of(*runs) == charts
    # a person who keeps the best of another score wants that one
    other = [work_dir(config, name, scores, **{'default_hooks.checkpoint.save_best': [names[0]],
                                               'default_hooks.checkpoint.rule': 'less'})
             for name in ('third', 'fourth')]
    run = report.Run(other[0])
    assert run.main == names[0] and run.best is run.val[1]  # here, the less the better
    assert names[0] in charts_of(*other)
    for best in main, names[0]:
        (other[0] / f'best_{best.replace("/", "_")}_iter_4.pth').touch()
    (other[0] / f'best_{names[0].replace("/", "_")}_x_iter_4.pth').touch()  # another, and newer
    assert f' third/best_{names[0].replace("/", "_")}_iter_4.pth ' in report.Run(
        other[0]).test_command


def test_data_is_gone(detection, coco):
    folder = work_dir(detection)
    save(PERFECT, folder / 'results.pkl')
    coco.rename(coco.with_name('moved'))
    page = page_of(folder)
    assert 'The test data cannot be read' in page and 'does not exist' in page
    assert page.count('<svg ') == 3


class Evil:
    def __reduce__(self):
        return os.system, ('touch executed', )


class Inside:
    """The same behind the function that tensors name."""

    def __reduce__(self):
        return torch.storage._load_from_bytes, (evil_bytes(), )


def evil_bytes():
    buffer = io.BytesIO()
    torch.save([Evil()], buffer)
    return buffer.getvalue()


@pytest.mark.parametrize('content, words', [
    ([Evil()], r'names (posix|nt)\.system'), ([Inside()], 'system'), (['text'], ''),
    ([], ''), ([dict(PERFECT[0], img_path=None)], '')])
def test_refuses_other_pickles(tmp_path, content, words):
    save(content, 'results.pkl')
    with pytest.raises(UserError, match='does not hold predictions.*' + words):
        load_predictions('results.pkl')
    assert not Path('executed').exists()


def test_mistakes(detection):
    def message(*args):
        with pytest.raises(SystemExit) as caught:
            page_of(*args)
        assert str(caught.value).startswith('error: ') and 'Traceback' not in str(caught.value)
        return str(caught.value)

    assert 'there is no work dir nothing' in message('nothing')
    Path('empty').mkdir()
    assert 'no training curves' in message('empty')
    folder = work_dir(detection)
    save(PERFECT[:1], folder / 'results.pkl')
    assert 'predictions of another data set' in message(folder)
    save([found(0, (5, 0.9, 8, 8, 48, 48)), found(1)], folder / 'results.pkl')
    assert 'more than the 2 classes' in message(folder)
    save([dict(img_path=f'val{i}.jpg', pred_sem_seg={}) for i in range(2)],
         folder / 'results.pkl')
    assert 'another kind of model' in message(folder)


# Before all other scripts; tells the page around it what it finds.
WATCH = '''<script>
const errors = [];
addEventListener('error', event => errors.push(event.message || 'not loaded'), true);
addEventListener('load', () => {
  const heading = document.querySelector('.sort th'), page = document.documentElement;
  heading.click();
  const first = document.querySelector('.sort tbody td').textContent;
  heading.click();
  const last = document.querySelector('.sort tbody td').textContent;
  document.querySelectorAll('.pair, summary').forEach(element => element.click());
  const wide = [...document.querySelectorAll('body *')]
    .filter(element => !element.parentElement.closest('.box, pre, svg'))
    .filter(element => element.getBoundingClientRect().right > innerWidth + 1);
  parent.postMessage(JSON.stringify({errors, first, last, inner: innerWidth,
    wide: wide.map(element => element.outerHTML.slice(0, 80)),
    scroll: page.scrollWidth, large: document.querySelectorAll('.large').length,
    requests: performance.getEntriesByType('resource').filter(
      entry => !entry.name.startsWith('data:')).length}), '*');
});
</script>'''
# Chromium's own windows are at least 500 pixels wide.
PHONE = '''<iframe src="watched.html" width="390" height="800" style="border: 0"></iframe>
<script>onmessage = event => { document.body.dataset.found = event.data; };</script>'''


@pytest.mark.skipif(not shutil.which('chromium'), reason='chromium is not installed')
def test_fits_a_phone(detection, tmp_path):
    """In a browser 390 pixels wide: nothing sticks out, nothing fails, tables sort."""
    runs = [work_dir(detection, name, **{'optim_wrapper.optimizer.lr': lr}) for name, lr in
            (('a_run_with_a_long_name_' * 3, 0.1), ('short', 0.2))]
    for run, predictions in zip(runs, (PERFECT, FAULTY), strict=True):
        save(predictions, run / 'results.pkl')
    page = page_of(*runs, work_dir(detection, 'third')).replace('<head>', '<head>' + WATCH)
    Path('watched.html').write_text(page)
    Path('phone.html').write_text(PHONE)
    done = subprocess.run(
        ['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run',
         '--disable-background-networking', '--disable-component-update', '--disable-sync',
         f'--user-data-dir={tmp_path / "profile"}', '--virtual-time-budget=5000',
         '--dump-dom', f'file://{tmp_path}/phone.html'],
        capture_output=True, text=True, timeout=60)
    seen = json.loads(re.search(r'data-found="(.*?)"', done.stdout)[1].replace('&quot;', '"'))
    assert seen.pop('inner') == 390 and seen.pop('scroll') <= 390
    assert seen == dict(errors=[], first='disc', last='square', wide=[], large=4, requests=0)
