"""The ledger: complete, in step with its pages, and never mixing a short run with a whole one."""
import copy
import json
from pathlib import Path

import pytest
import results as tool
from commands import command
from mmengine.config import Config

from backbones.weights import known
from downstream.scoring import ledger as book
from downstream.scoring.records import changes_in_test, deviations

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ROOT / 'configs'
NAME = 'maskrcnn_focalnet_t_1x'


@pytest.fixture(scope='module')
def ledger():
    return book.load()


def test_every_experiment_is_in_the_ledger(ledger):
    names = [entry['Name'] for entry in ledger['Models']]
    assert sorted(names) == sorted(path.stem for path in CONFIGS.glob('*.py')
                                   if not path.stem.endswith('_fsdp'))  # the same experiment
    methods = {collection['Name'] for collection in ledger['Collections']}
    for entry in ledger['Models']:
        assert entry['Config'] == f'configs/{entry["Name"]}.py'
        assert entry['In Collection'] in methods
        assert book.published(entry).keys() <= book.METRICS.keys()
        assert 'Source' in entry or not book.published(entry)
        assert entry['Cost'].keys() == {'Parameters (M)', 'FLOPs (G)', 'Activations (GiB)'}


def test_numbers_of_the_papers(ledger):
    """Some of each table, as papers print them."""
    def of(name):
        return book.published(book.find(ledger, name))

    assert of('maskrcnn_focalnet_b_3x') == {'box AP': 49.8, 'mask AP': 44.1}
    assert of('upernet_focalnet_s_srf_160k') == {'mIoU': 49.3, 'mIoU (ms+flip)': 50.1}
    assert of('cascade_maskrcnn_focalnet_t_3x') == {'box AP': 51.5}
    assert of('detr_container_light_50e') == {'box AP': 38.9}
    assert of('dino_focalnet_h_5scale_12e_test1200') == {'box AP': 64.3}
    assert of('mask2former_focalnet_l_coco_panoptic_100e') == {'PQ': 57.9}
    assert not of('maskrcnn_localvit_t_1x')


def test_pages_are_not_stale():
    tool.main(['--check'])


def test_a_stale_page_is_noticed(tmp_path, monkeypatch):
    for name in ('README.md', 'docs/results.md', 'configs/metafile.yml'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text().replace('49.8', '49.9'))
    monkeypatch.setattr(book, 'ROOT', tmp_path)
    with pytest.raises(SystemExit, match='docs/results.md and README.md are not what'):
        tool.main(['--check'])
    tool.main([])
    tool.main(['--check'])
    assert (tmp_path / 'README.md').read_text() == (ROOT / 'README.md').read_text()


def test_the_metafile_survives_writing(ledger, tmp_path):
    book.save(ledger, tmp_path / 'metafile.yml')
    assert (tmp_path / 'metafile.yml').read_text() == book.METAFILE.read_text()


def record(**changes):
    return {**dict(
        experiment=NAME, metrics={'coco/bbox_mAP': 0.4612, 'coco/segm_mAP': 0.415,
                                  'coco/bbox_mAP_50': 0.68},
        images=5000, tta=False, deviations=[], checkpoint='epoch_12.pth, sha256 01234567',
        date='2026-12-01', machine='8 x GPU', command='tools/test.py ...'), **changes}


def test_collecting(tmp_path, ledger):
    """A whole run fills the table; a part of the images or another schedule goes elsewhere."""
    ledger = copy.deepcopy(ledger)
    runs = {'a': record(), 'b': record(images=80),
            'c': record(deviations=['trained 3 of 12 epochs']),
            'd': record(experiment='upernet_focalnet_t_160k', metrics={'mIoU': 47.81}, images=2000,
                        tta=True)}
    for name, run in runs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / 'test_record.json').write_text(json.dumps(run))
    assert book.collect(ledger, tmp_path) == 4
    assert book.collect(ledger, tmp_path) == 0  # each once
    page = book.results_page(ledger)
    line, = [line for line in page.splitlines() if f'[{NAME}]' in line]
    assert '| 46.1 / 46.1 | 41.5 / 41.5 |' in line
    line, = [line for line in page.splitlines() if '[upernet_focalnet_t_160k]' in line]
    assert '| 46.8 / - | 47.8 / 47.8 |' in line
    others = page.partition('## Other runs')[2].partition('## Sources')[0]
    assert 'scored on 80 of 5000 images' in others and 'trained 3 of 12 epochs' in others
    assert others.count('epoch_12.pth') == 2
    book.save(ledger, tmp_path / 'metafile.yml')
    assert book.results_page(book.load(tmp_path / 'metafile.yml')) == page


def test_released_models_are_no_trainings(tmp_path, ledger):
    """Their scores stand apart, and never as a training that was repeated here."""
    ledger = copy.deepcopy(ledger)
    (tmp_path / 'test_record.json').write_text(json.dumps(record(released=NAME)))
    assert book.collect(ledger, tmp_path) == 1
    page = book.results_page(ledger)
    line, = [line for line in page.splitlines() if f'[{NAME}]' in line]
    assert '| 46.1 / - | 41.5 / - |' in line
    part = page.partition('## Released models, scored here')[2].partition('\n## ')[0]
    assert f'| {NAME} | box AP 46.1 / 46.12, mask AP 41.5 / 41.5 |' in part
    assert '## Other runs' not in page
    (tmp_path / 'test_record.json').write_text(json.dumps(record(
        released=NAME, test_deviations=['model.test_cfg.x 1, not 2'], metrics={'coco/bbox_mAP': 0})
    ))
    book.collect(ledger, tmp_path)
    assert 'model.test_cfg.x 1, not 2' in book.results_page(ledger).partition('## Other runs')[2]


def test_weights_are_where_the_list_has_them(ledger):
    """Of every experiment whose model was released."""
    found = {entry['Name']: str(entry['Weights']) for entry in ledger['Models']
             if 'Weights' in entry}
    assert found == {entry['config']: entry['sources'][0] for entry in known().values()
                     if 'config' in entry}
    assert all(book.published(book.find(ledger, name)) for name in found)


def test_another_test_is_noticed():
    cfg = Config.fromfile(CONFIGS / f'{NAME}.py', import_custom_modules=False)
    assert changes_in_test(cfg, NAME) == []
    cfg.test_dataloader.dataset.data_root = '/elsewhere'
    assert changes_in_test(cfg, NAME) == []
    cfg.test_dataloader.dataset.pipeline[1].scale = (640, 400)
    cfg.model.test_cfg.rcnn.score_thr = 0.3
    assert changes_in_test(cfg, NAME) == [
        'test_dataloader.dataset.pipeline.1.scale.0 640, not 1333',
        'test_dataloader.dataset.pipeline.1.scale.1 400, not 800',
        'model.test_cfg.rcnn.score_thr 0.3, not 0.05']
    assert changes_in_test(cfg, 'mine') == []


def test_objects365_is_not_coco():
    """It has other numbers of images."""
    assert book.to_entry(record(dataset='Objects365V2Dataset', images=79998))['Deviations'] == []
    assert book.to_entry(record(dataset='CocoDataset', images=4999))['Deviations'] == [
        'scored on 4999 of 5000 images']


def test_nothing_to_collect(tmp_path, ledger):
    with pytest.raises(SystemExit, match='holds no test_record.json, which tools/test.py writes'):
        tool.main([str(tmp_path)])
    (tmp_path / 'test_record.json').write_text(json.dumps(record(experiment='mine')))
    with pytest.raises(SystemExit, match='the metafile has no experiment mine'):
        tool.main([str(tmp_path)])


def meta(change=None, **kwargs):
    cfg = Config.fromfile(CONFIGS / f'{NAME}.py', import_custom_modules=False)
    cfg.world_size = 8
    if change:
        change(cfg)
    return {**dict(cfg=cfg.pretty_text, epoch=12, iter=87960), **kwargs}


def test_deviations(monkeypatch):
    assert deviations(meta(), NAME) == []
    monkeypatch.setenv('COCO_ROOT', '/elsewhere')  # data may lie anywhere, weights too
    assert deviations(meta(lambda cfg: cfg.model.backbone.init_cfg.update(checkpoint='x.pth')),
                      NAME) == []
    assert deviations(meta(epoch=11), NAME) == ['trained 11 of 12 epochs']
    assert deviations(meta(lambda cfg: cfg.update(world_size=1)), NAME) == [
        '2 images an iteration, not 16']
    assert deviations(meta(lambda cfg: cfg.optim_wrapper.optimizer.update(lr=2e-4)), NAME) == [
        'optim_wrapper.optimizer.lr 0.0002, not 0.0001']
    assert deviations({}, NAME) == ['weights without a record of their training']
    assert deviations(meta(), 'demo') == ['demo is no experiment in configs/']


def test_a_test_leaves_its_record(detection, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('LOCAL_RANK', '0')
    command('train').main([str(detection), '--work-dir', 'run'])
    command('test').main([str(detection), 'run/iter_2.pth', '--work-dir', 'scored'])
    path, = tmp_path.glob('scored/*/test_record.json')
    found = json.loads(path.read_text())
    assert found['experiment'] == 'tiny_maskrcnn' and found['images'] == 2 and not found['tta']
    assert {'coco/bbox_mAP', 'coco/segm_mAP'} <= found['metrics'].keys()
    assert found['deviations'] == ['tiny_maskrcnn is no experiment in configs/']
    assert found['checkpoint'].startswith('iter_2.pth, sha256 ')
