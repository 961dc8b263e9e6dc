"""tools/transfer.py: equal recipes for all backbones, and runs that are read, resumed or named."""
import csv
import io
import json
import math
import subprocess
from pathlib import Path

import pytest
import torch
from commands import command
from mmengine.registry import MODELS

from downstream.data.generated import make_demo_data
from downstream.errors import UserError
from downstream.scoring import transfer
from downstream.scoring.transfer import RECIPES, Settings, Trial, compose
from downstream.scoring.transfer_table import Table
from downstream.scoring.trials import check_experiment

FAMILIES = transfer.demo_families()


@pytest.mark.parametrize('head', RECIPES['small'])
@pytest.mark.parametrize('family', FAMILIES)
def test_small_versions_fit(head, family, tmp_path):
    cfg = compose(Trial(f'demo:{family}', head, 0, Settings(tmp_path)))
    torch.manual_seed(0)
    model = MODELS.build(dict(cfg.model, _scope_=cfg.default_scope)).eval()
    with torch.no_grad():
        maps = model.extract_feat(torch.zeros(1, 3, 160, 160))
    sides = [m.shape[-1] for m in maps]
    one_stride = 'pyramid' in FAMILIES[family]
    pyramid = [20, 10, 5, 2, 1] if one_stride else [20, 10, 5, 3, 2]
    assert sides == {'maskrcnn': [40, 20, 10, 5, 3], 'cascade': [40, 20, 10, 5, 3],
                     'retinanet': pyramid, 'atss': pyramid, 'dino': pyramid[:4], 'detr': [10],
                     'linear': [10] if one_stride else [5]}.get(head, [40, 20, 10, 5])


@pytest.mark.parametrize(('budget', 'head'), [
    ('small', 'retinanet'), ('small', 'upernet'), ('1x', 'maskrcnn'), ('1x', 'upernet')])
def test_recipes_differ_in_the_backbone_alone(budget, head, tmp_path):
    settings = Settings(tmp_path, budget)
    first, second = (compose(Trial(name, head, 3, settings)) for name in (
        'focalnet_t', 'resnet50' if head != 'upernet' else 'swin_t'))
    assert first.randomness.seed == second.randomness.seed == 3
    assert first.model.backbone.type != second.model.backbone.type
    for key in ('train_cfg', 'param_scheduler', 'train_dataloader', 'test_dataloader',
                'test_evaluator', 'auto_scale_lr'):
        assert first[key] == second[key]
    assert first.optim_wrapper.optimizer == second.optim_wrapper.optimizer
    # random weights for both: the ResNet's config names some
    assert not first.model.backbone.init_cfg and not second.model.backbone.init_cfg


def test_own_weights(tmp_path):
    settings = Settings(tmp_path, '1x', 'own')
    cfg = compose(Trial('focalnet_t', 'maskrcnn', 0, settings))
    assert cfg.model.backbone.init_cfg.checkpoint == 'focalnet_tiny_lrf'
    kept = compose(Trial('resnet50', 'maskrcnn', 0, settings)).model.backbone.init_cfg
    assert 'resnet50' in kept.checkpoint


def test_a_step_has_the_recipes_images_on_any_number_of_gpus(tmp_path):
    cfg = compose(Trial('focalnet_t', 'maskrcnn', 0, Settings(tmp_path, '1x')))
    assert cfg.train_dataloader.batch_size == 2 and cfg.auto_scale_lr.base_batch_size == 16
    assert transfer.steps(cfg, 8) == []
    assert transfer.steps(cfg, 2) == ['--accumulate', '4']
    with pytest.raises(UserError, match='3 GPUs take 6 images'):
        transfer.steps(cfg, 3)


@pytest.mark.parametrize(('name', 'channels', 'stride'), [
    ('localvit_t', 192, 16), ('focalnet_t', 768, 32), ('demo:localvit', 96, 16)])
def test_the_linear_head_reads_the_last_map_as_it_is(name, channels, stride, tmp_path):
    cfg = compose(Trial(name, 'linear', 0, Settings(tmp_path, frozen=True)))
    model = MODELS.build(dict(cfg.model, _scope_='mmseg')).eval()
    assert {key.split('.')[0] for key, p in model.named_parameters() if p.requires_grad} == {
        'decode_head'}
    with torch.no_grad():
        map_, = model.extract_feat(torch.zeros(1, 3, 160, 160))
    assert map_.shape == (1, channels, 160 // stride, 160 // stride)
    head = [tuple(p.shape) for p in model.decode_head.parameters()]
    assert sorted(head) == sorted([(channels, ), (channels, ), (7, channels, 1, 1), (7, )])


def test_frozen_retinanet(tmp_path):
    cfg = compose(Trial('demo:container', 'retinanet', 0, Settings(tmp_path, frozen=True)))
    model = MODELS.build(dict(cfg.model, _scope_='mmdet'))
    trained = {key.split('.')[0] for key, p in model.named_parameters() if p.requires_grad}
    assert trained == {'neck', 'bbox_head'}


def test_a_frozen_backbone_trains_in_retinanet(tmp_path):
    make_demo_data(tmp_path / 'data', train=2, val=1)
    cfg = compose(Trial('demo:focalnet', 'retinanet', 0, Settings(tmp_path, frozen=True)))
    cfg.dump(tmp_path / 'config.py')
    assert 'M parameters, loss' in check_experiment(tmp_path / 'config.py', factor=1.)


def test_frozen_has_heads_of_its_own():
    assert transfer.heads('1x', frozen=True) == ['retinanet', 'linear']
    assert transfer.heads('1x', frozen=False) == ['maskrcnn', 'retinanet', 'detr', 'upernet']


class Tools:
    """In place of tools/train.py and tools/test.py: leaves what they leave. Counts the calls."""

    def __init__(self, scores, broken=()):
        self.scores, self.broken, self.calls = scores, broken, []

    def __call__(self, words, *, env, stdout, stderr):
        tool = next(Path(word).stem for word in words if Path(word).parent.name == 'tools')
        folder = Path(words[words.index('--work-dir') + 1])
        self.calls.append((tool, words))
        run = folder.parent if tool == 'test' else folder
        name, seed = run.parent.name, int(run.name.removeprefix('seed'))
        if name in self.broken:
            said = 'killed' if (folder / 'output.txt').stat().st_size else 'error: this one cannot'
            stdout.write(f'much else\n{said}\nmore\n')
            return subprocess.CompletedProcess(words, 1)
        if tool == 'train':
            vis_data = folder / '20260101_000000' / 'vis_data'
            vis_data.mkdir(parents=True)
            rows = [dict(loss=8. / step, time=0.5, memory=2048, step=step, iter=step, epoch=1)
                    for step in (1, 2, 4)]
            (vis_data / 'scalars.json').write_text('\n'.join(map(json.dumps, [
                *rows, {'coco/bbox_mAP': 0.25, 'step': 1}])) + '\n{"loss": 1')
            (folder / 'last_checkpoint').write_text('/elsewhere/epoch_3.pth')
            (folder / 'config.py').write_text((folder / 'recipe' / 'config.py').read_text())
        else:
            record = folder / '20260101_010000' / 'test_record.json'
            record.parent.mkdir(parents=True)
            value = self.scores[name][seed]
            record.write_text(json.dumps(dict(metrics={
                'coco/bbox_mAP': value, 'coco/bbox_mAP_50': 0.9})))
        return subprocess.CompletedProcess(words, 0)


@pytest.fixture
def tools(monkeypatch):
    found = Tools({'demo-focalnet': [0.5, 0.6], 'demo-container': [0.2, 0.25]}, {'demo-localvit'})
    monkeypatch.setattr(transfer.subprocess, 'run', found)
    monkeypatch.setattr(transfer, 'cost_of', lambda cfg: dict(
        params=2_000_000, flops=3_000_000_000, input=[800, 1280]))
    return found


def planned(tmp_path, *names, seeds=2, **settings):
    return transfer.plan(names, ['retinanet'], seeds, Settings(tmp_path, **settings))


def test_runs_are_recorded_and_not_repeated(tmp_path, tools):
    trials = planned(tmp_path, 'demo:focalnet')
    transfer.run_all(trials)
    assert [trial.error for trial in trials] == ['', '']
    assert trials[1].result['scores'] == {'coco/bbox_mAP': pytest.approx(60)}
    assert trials[0].result['images_a_second'] == 8 and trials[0].result['memory'] == 2
    assert [trials[0].result[key] for key in ('first_loss', 'last_loss')] == [8, 2]
    assert [tool for tool, _ in tools.calls] == ['train', 'test'] * 2
    assert '--resume' in tools.calls[0][1]
    assert str(trials[0].folder / 'epoch_3.pth') in tools.calls[1][1]
    again = planned(tmp_path, 'demo:focalnet', seeds=3)
    assert [trial.result for trial in again[:2]] == [trial.result for trial in trials]
    tools.scores['demo-focalnet'].append(0.7)
    transfer.run_all(again)
    assert len(tools.calls) == 6 and again[2].score == pytest.approx(70)


@pytest.mark.parametrize('other', [dict(data='mine'), dict(budget='1x')])
def test_a_record_of_another_run_is_not_taken(tmp_path, tools, other):
    tools.scores['focalnet_t'] = [0.5]
    transfer.run_all(planned(tmp_path, 'focalnet_t', seeds=1))
    assert planned(tmp_path, 'focalnet_t', seeds=1)[0].score == pytest.approx(50)
    trial, = planned(tmp_path, 'focalnet_t', seeds=1, **other)
    assert 'another config or other data' in trial.error and trial.result is None


def test_a_failure_does_not_lose_the_others(tmp_path, tools):
    trials = planned(tmp_path, 'demo:localvit', 'demo:nothing', 'demo:focalnet', seeds=1)
    transfer.run_all(trials, jobs=2)
    first, second, third = trials
    assert first.error.startswith('train.py ended with status 1')
    assert first.error.endswith('error: this one cannot') and 'output.txt' in first.error
    assert 'there is no small version of that name, only of focalnet, ' in second.error
    assert third.score == pytest.approx(50)
    del tools.scores['demo-focalnet']  # what no one foresaw
    surprised, = planned(tmp_path / 'new', 'demo:focalnet', seeds=1)
    transfer.run_all([surprised])
    assert surprised.error.startswith('KeyError')
    again = planned(tmp_path, 'demo:localvit', seeds=1)
    transfer.run_all(again)
    assert again[0].error.endswith(': much else killed more')  # not what the first time said
    tools.broken = ()
    tools.scores['demo-localvit'] = [0.4]
    again = planned(tmp_path, 'demo:localvit', seeds=1)
    transfer.run_all(again)
    assert again[0].score == pytest.approx(40)


def test_table(tmp_path, tools):
    trials = planned(tmp_path, 'demo:focalnet', 'demo:container', 'demo:localvit')
    transfer.run_all(trials)
    table = Table(trials)
    mean, spread = table.heads['retinanet']['demo:focalnet'].mean('coco/bbox_mAP')
    assert mean == pytest.approx(55) and spread == pytest.approx(math.sqrt(50))
    lines = table.markdown().splitlines()
    assert lines[0] == '| backbone | retinanet M params | retinanet GFLOPs | retinanet box AP |'
    assert lines[2:5] == ['| demo:focalnet | 2.0 | 3.0 | 55.0 ± 7.1 |',
                          '| demo:container | 2.0 | 3.0 | 22.5 ± 3.5 |',
                          '| demo:localvit | 2.0 | 3.0 |  |']
    assert lines[-1].startswith('- retinanet demo:localvit seed 1: train.py ended with status 1')
    assert table.latex().splitlines()[1] == r'demo:focalnet & 2.0 & 3.0 & 55.0 $\pm$ 7.1 \\'
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [float(row['coco/bbox_mAP'] or -1) for row in rows] == pytest.approx(
        [50, 60, 20, 25, -1, -1])
    assert rows[0]['parameters'] == '2000000' and 'this one cannot' in rows[4]['error']
    assert transfer.missed(trials) == ['retinanet demo:container seed 0: 20.0 of 30',
                                       'retinanet demo:container seed 1: 25.0 of 30']


def test_names_are_escaped_for_latex(tmp_path):
    trial = Trial('hf:a_b&c', 'retinanet', 0, Settings(tmp_path))
    assert Table([trial]).latex().splitlines()[1].startswith(r'hf:a\_b\&c & ')


@pytest.mark.parametrize(('bar', 'names', 'status'), [
    ([], ['demo:focalnet'], 0), (['--require'], ['demo:focalnet'], 0),
    ([], ['demo:container'], 0), (['--require'], ['demo:container'], '1 miss the one required'),
    ([], ['demo:focalnet', 'demo:localvit'], '1 of 2 runs have no score')])
def test_command(tmp_path, tools, monkeypatch, bar, names, status):
    monkeypatch.setattr(transfer, 'make_data', lambda folder: None)
    call = [*names, '--heads', 'retinanet', '-o', str(tmp_path), *bar]
    if status:
        with pytest.raises(SystemExit, match=status):
            command('transfer').main(call)
    else:
        command('transfer').main(call)
    page = (tmp_path / 'index.html').read_text()
    for name in names:
        assert name in page
    assert ('this one cannot' in page) == ('demo:localvit' in names)
    assert {file.name for file in tmp_path.glob('table.*')} == {'table.md', 'table.tex',
                                                               'table.csv'}
    assert 'Training loss' in page and 'Validation: coco/bbox_mAP' in page
    assert 'No pictures of' in page  # there are no predictions here


@pytest.mark.parametrize(('flags', 'words'), [
    (['--heads', 'nohead'], 'with --budget small there are maskrcnn'),
    (['--heads', 'dino', '--budget', '1x'], 'with --budget 1x there are maskrcnn'),
    (['--heads', 'linear'], 'with --budget small there are maskrcnn'),
    (['--heads', 'upernet', '--frozen'], '--frozen there are retinanet, linear'),
    (['--frozen', '--require'], 'only small versions'),
    (['--seeds', '0'], 'from 1 on'), (['--jobs', '2', '--gpus', '2'], 'one after the other'),
    (['--require', '--budget', '1x'], 'only small versions')])
def test_wrong_flags(flags, words):
    with pytest.raises(SystemExit, match=words):
        command('transfer').main(['focalnet_t', *flags])
