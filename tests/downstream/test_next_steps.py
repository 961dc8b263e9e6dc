"""The commands that tools end with: they are accepted as they stand, and their files are there."""
import shlex
import sys
import time
from pathlib import Path

import pytest
import torch
from commands import TOOLS, command, weights_of
from mmengine.config import Config

from downstream import next_steps
from downstream.next_steps import finds_this_python, shown

NEW = '-o', '--out'  # what a command writes


@pytest.fixture(autouse=True)
def a_name_of_its_own(elsewhere):
    new_second()


def new_second():
    time.sleep(1.01 - time.time() % 1)  # mmengine names runs by the second


def suggested(said: str) -> dict[str, list[str]]:
    """{tool: its arguments} of the commands at the end of what a tool printed."""
    lines = said.rstrip().splitlines()
    found = {}
    for purpose, line in zip(lines, lines[1:], strict=False):
        if purpose.endswith(':') and line.startswith('    ') and '/tools/' in line:
            words = shlex.split(line)
            while '=' in words[0]:
                assert Path(words.pop(0).partition('=')[2]).is_dir()
            if words[0] == sys.executable:
                words.pop(0)
            assert Path(words[0]).resolve().parent == TOOLS
            found[Path(words[0]).stem] = words[1:]
    return found


def accepted(tool: str, words: list[str]):
    """The arguments as the tool understands them; the files that it reads are there."""
    args = command(tool).parse_args(words)
    for before, word in zip(['', *words], words, strict=False):
        if before not in NEW and word[0] != '-' and '=' not in word:
            assert Path(word).exists(), word
    return args


def test_paths_are_shown_from_here(tmp_path):
    assert shown(tmp_path / 'a' / 'b') == 'a/b'
    assert shown('/usr') == '/usr'
    line = next_steps.command('train.py', tmp_path / 'a b.py', '--amp', COCO_ROOT=tmp_path / 'c d')
    assert line.startswith("COCO_ROOT='c d' ") and line.endswith("train.py 'a b.py' --amp")
    assert finds_this_python() or sys.executable in line


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_after_training_and_testing(task, request, tmp_path, capsys):
    """The commands run when they are pasted, on data of one's own too."""
    config = request.getfixturevalue(task)
    data = ['--data', str(request.getfixturevalue('coco'))] if task == 'detection' else []
    best = 'coco/bbox_mAP' if task == 'detection' else 'mIoU'
    command('train').main([str(config), *data, '--cfg-options',
                           f'default_hooks.checkpoint.save_best={best}'])
    said = capsys.readouterr().out
    folder = tmp_path / 'work_dirs' / config.stem
    checkpoint = folder / f'best_{best.replace("/", "_")}_iter_2.pth'
    assert f'\nbest checkpoint ({best} ' in said
    assert f' at iter 2): {checkpoint.relative_to(tmp_path)}\n' in said
    steps = suggested(said)
    assert list(steps) == ['test', 'predict', 'report']
    for tool, words in steps.items():
        accepted(tool, words)
    assert Path(steps['test'][0]).resolve() == folder / config.name
    assert Path(steps['test'][1]).resolve() == checkpoint

    new_second()
    before = (folder / config.name).read_text()
    command('test').main([*steps['test'], '--show-dir', 'pictures'])
    assert (folder / config.name).read_text() == before  # what trained is still there to be read
    assert len(list(Path('pictures').rglob('*.[jp][pn]g'))) == 2
    said = capsys.readouterr().out
    after = suggested(said)
    assert after == {tool: steps[tool] for tool in ('predict', 'report')}
    command('predict').main(after['predict'])
    assert len(list((folder / 'predicted' / 'pictures').iterdir())) == 1
    command('report').main(after['report'])
    page = (folder / 'report' / 'index.html').read_text()
    assert best in page


def test_without_a_validation_the_last_checkpoint_is_named(detection, coco, capsys, tmp_path):
    (tmp_path / 'own.yaml').write_text(
        f'root: {coco}\ntrain: {{annotations: annotations/train.json, images: train}}\n')
    command('train').main([str(detection), '--data', 'own.yaml', '--work-dir', 'run'])
    said = capsys.readouterr().out
    assert '\nlast checkpoint: run/iter_2.pth\n' in said
    steps = suggested(said)
    assert list(steps) == ['predict', 'report']
    assert accepted('predict', steps['predict']).inputs == ['coco/train/train0.jpg']


def test_a_test_does_not_take_the_place_of_the_training(detection, tmp_path):
    """With --tta its config has another model, and a second test would wrap that again."""
    work_dir = tmp_path / 'work_dirs' / detection.stem
    command('train').main([str(detection)])
    resolved, weights = str(work_dir / detection.name), str(work_dir / 'iter_2.pth')
    for flags in (['--tta'], ['--tta'], []):
        new_second()
        command('test').main([resolved, weights, *flags])
        assert Config.fromfile(resolved).model.type == 'MaskRCNN'
    assert len(list((work_dir / 'test').glob('*/test_record.json'))) == 3


def test_of_options_of_its_own_a_test_says_nothing(detection, capsys):
    weights = weights_of(detection)
    command('test').main([str(detection), weights, '--cfg-options',
                          'model.test_cfg.rcnn.score_thr=0.2'])
    assert suggested(capsys.readouterr().out) == {}


def test_after_a_check(coco, ade, capsys, tmp_path):
    command('check_data').main([str(coco)])
    args = accepted('train', suggested(capsys.readouterr().out)['train'])
    assert Config.fromfile(args.config).model.type == 'MaskRCNN' and args.data == 'coco'
    (tmp_path / 'own.yaml').write_text(
        f'root: {ade}\ntrain: {{images: images/train, labels: labels/train}}\n'
        'classes: {1: wall, 2: door}\n')
    command('check_data').main(['own.yaml', '--kind', 'segmentation'])
    args = accepted('train', suggested(capsys.readouterr().out)['train'])
    assert Config.fromfile(args.config).model.type == 'EncoderDecoder' and args.data == 'own.yaml'
    (coco / 'train' / 'train0.jpg').unlink()
    with pytest.raises(SystemExit):
        command('check_data').main([str(coco)])
    assert suggested(capsys.readouterr().out) == {}


def test_after_converting(detection, capsys, tmp_path):
    convert = command('convert_checkpoint').main
    convert([weights_of(detection), 'whole.pth', '--config', str(detection)])
    assert accepted('test', suggested(capsys.readouterr().out)['test']).checkpoint == 'whole.pth'
    (tmp_path / 'own.py').write_text(
        "model = dict(type='MaskRCNN', backbone=dict(type='FocalNet', embed_dim=8, "
        "depths=(1, 1, 1, 1)))\ncustom_imports = dict(imports=['downstream'])\n")
    from backbones import FocalNet
    torch.save(FocalNet(embed_dim=8, depths=(1, 1, 1, 1)).state_dict(), 'backbone.pth')
    convert(['backbone.pth', 'own.safetensors', '--config', 'own.py'])
    args = accepted('train', suggested(capsys.readouterr().out)['train'])
    assert args.cfg_options == {'model.backbone.init_cfg.type': 'Pretrained',
                                'model.backbone.init_cfg.checkpoint': 'own.safetensors'}
    convert(['backbone.pth', 'other.safetensors'])
    assert suggested(capsys.readouterr().out) == {}


def test_after_drawing_and_choosing_images(capsys, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['make_demo_data.py', 'data', '--train', '4', '--val', '2'])
    command('make_demo_data').main()
    assert accepted('train', suggested(capsys.readouterr().out)['train'])
    command('subset_coco').main(['data/coco', 'few', '--images', '2', '--min-area', '0'])
    assert accepted('train', suggested(capsys.readouterr().out)['train'])


def test_an_installed_package_has_no_tools(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(next_steps, 'TOOLS', tmp_path / 'tools')
    next_steps.suggest(score_it='tools/test.py')
    assert capsys.readouterr().out == ''
