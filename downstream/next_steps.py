"""The commands that come next, with paths that work when they are pasted where the tool was run."""
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from mmengine.dist import master_only
from mmengine.hooks import CheckpointHook

from .experiments import CONFIGS, ROOT

TOOLS = ROOT / 'tools'
# What is trained on data of a kind, for a start.
TRIED = {'detection': 'maskrcnn_focalnet_t_1x.py', 'segmentation': 'upernet_focalnet_t_160k.py',
         'panoptic': 'mask2former_focalnet_l_coco_panoptic_100e.py'}


def shown(path: str | Path) -> str:
    """A path as it is shortest from here."""
    path = os.path.abspath(path)
    return min(os.path.relpath(path), path, key=len)


def command(tool: str, *args: str | Path, **variables: Path) -> str:
    """A line for the shell.

    Args:
        tool: a file of tools/. Python stands before it where the tool would not find this one.
        args: paths as Path; they are shown from here.
        variables: of the environment.
    """
    python = [] if finds_this_python() else [sys.executable]
    return ' '.join([f'{name}={shlex.quote(shown(value))}' for name, value in variables.items()] + [
        shlex.join([*python, shown(TOOLS / tool),
                    *(shown(arg) if isinstance(arg, Path) else str(arg) for arg in args)])])


def finds_this_python() -> bool:
    """Whether a tool that is started alone runs in this environment (tools/in_venv.py)."""
    first = shutil.which('python3')
    return Path(sys.prefix) == ROOT / '.venv' or (
        first is not None and Path(first).parent == Path(sys.executable).parent)


@master_only
def suggest(**steps: str | None):
    """Print commands, each below what it is for; nothing where there are no tools (a wheel)."""
    steps = {purpose.replace('_', ' '): line for purpose, line in steps.items() if line}
    if steps and TOOLS.is_dir():
        print('\n' + '\n'.join(f'{purpose}:\n    {line}' for purpose, line in steps.items()),
              flush=True)


@master_only
def after_training(runner):
    """Say which checkpoint is the best, and how to score it, predict with it and look at the run.

    All with the config as it ran, which lies in the work dir.
    """
    folder = Path(runner.work_dir)
    found = best_checkpoint(runner)
    if found is None:
        return
    checkpoint, about = found
    print(f'\n{about}: {shown(checkpoint)}')
    config = folder / Path(runner.cfg.filename).name
    suggest(
        score_it=command('test.py', config, checkpoint, '--out', folder / 'results.pkl')
        if runner.cfg.get('test_dataloader') else None,
        predict_images_or_videos=command('predict.py', config, checkpoint, an_image(
            (runner.val_loop or runner.train_loop).dataloader), '-o', folder / 'predicted'),
        look_at_the_run=command('report.py', folder, '-o', folder / 'report'))


def best_checkpoint(runner) -> tuple[Path, str] | None:
    """(the checkpoint to go on with, what it is in words); None where none was kept."""
    known, folder = runner.message_hub.runtime_info, Path(runner.work_dir)
    for hook in runner.hooks:
        if not isinstance(hook, CheckpointHook):
            continue
        for metric in hook.key_indicators if hook.save_best else ():
            several = f'_{metric}' if len(hook.key_indicators) > 1 else ''
            path = known.get(f'best_ckpt{several}')
            # Of a run that was moved and resumed, the path is another one.
            if path and (path := folder / Path(path).name).is_file():
                when = re.search(r'_(epoch|iter)_(\d+)$', path.stem)
                return path, (f'best checkpoint ({metric} {known[f"best_score{several}"]:.4g}'
                              + (f' at {when[1]} {when[2]})' if when else ')'))
        if hook.last_ckpt and (path := folder / Path(hook.last_ckpt).name).is_file():
            return path, 'last checkpoint'
    return None


def an_image(loader) -> Path:
    """The first image of a data set, whatever wraps it."""
    dataset = loader.dataset
    while not hasattr(dataset, 'get_data_info'):
        dataset = dataset.dataset
    return Path(dataset.get_data_info(0)['img_path'])


@master_only
def after_test(runner, args):
    """How to predict with the checkpoint, and to look at the run that it comes from.

    Args:
        args: those of tools/test.py.
    """
    checkpoint = Path(args.checkpoint)
    if not checkpoint.is_file():  # a URL
        return
    folder = checkpoint.absolute().parent
    data = ['--data', Path(args.data)] if args.data else []
    suggest(
        score_them_where_there_is_ground_truth=command(
            'score.py', Path(args.format_only), '--config', Path(args.config), *data)
        if args.format_only and not args.cfg_options else None,
        predict_images_or_videos=None if args.cfg_options else command(
            'predict.py', Path(args.config), checkpoint, an_image(runner.test_dataloader), '-o',
            folder / 'predicted', *data),
        look_at_the_run=command('report.py', folder, '-o', folder / 'report')
        if any(folder.glob('*/vis_data/scalars.json')) else None)


def after_check(args):
    """How to train on data in which nothing has to be put right.

    Args:
        args: those of tools/check_data.py.
    """
    config = Path(args.config) if args.config else CONFIGS / TRIED[args.kind or 'detection']
    if not args.cfg_options:
        suggest(train_on_it=command('train.py', config, *(
            ['--data', Path(args.data)] if args.data else [])))


def after_converting(args, whole: bool):
    """How to use a converted file with the experiment that it was checked against.

    Args:
        args: those of tools/convert_checkpoint.py.
        whole: it is a detector or segmentor, no backbone alone.
    """
    if not args.config or args.keep_classes:
        return
    config, partial = Path(args.config), ['--allow-partial'] * args.allow_partial
    if whole:
        suggest(score_it=command('test.py', config, Path(args.target), *partial))
    else:
        suggest(start_from_it=command(
            'train.py', config, *partial, '--cfg-options',
            'model.backbone.init_cfg.type=Pretrained',
            f'model.backbone.init_cfg.checkpoint={shown(args.target)}'))
