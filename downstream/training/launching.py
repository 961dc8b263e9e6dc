"""What the tools that run models share: flags, reading the config, fitting the machine."""
import argparse
import ast
import contextlib
import difflib
import gc
import os
import threading
import traceback
from pathlib import Path

import torch.distributed
from mmengine.config import Config, DictAction
from mmengine.device import get_device
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

from .. import quiet
from ..errors import UserError
from ..experiments import CONFIGS
from .options import merge_options
from .processes import end_workers, guard_forks
from .waiting import about_others, set_timeout, wait_for_first, wait_for_scores

PATIENCE = 5  # seconds that a process waits, after an error, for the threads of its group


def make_parser(description, work_dir):
    """What tools/train.py and tools/test.py have in common; ``work_dir`` tells of --work-dir."""
    parser = argparse.ArgumentParser(description=description)
    add_config(parser)
    parser.add_argument('--work-dir', metavar='DIR', help=work_dir)
    add_config_options(parser)
    add_weight_options(parser)
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
                        help='of several processes; tools/dist_*.sh and slurm_*.sh set it '
                             '(docs/distributed.md)')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0,
                        help=argparse.SUPPRESS)  # from torch.distributed.launch
    return parser


def add_config_options(parser):
    parser.add_argument('--data', metavar='FILE_OR_FOLDER',
                        help='data of your own in place of the experiment\'s: a .yaml file that '
                             'describes it, or a folder (docs/own_data.md)')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={}, metavar='K=V',
                        help='set entries of the config, e.g. train_dataloader.num_workers=4 '
                             'model.backbone.use_checkpoint=True')


def add_weight_options(parser):
    parser.add_argument('--trust-checkpoint', action='store_true',
                        help='read the weight files that are named here even where that runs code '
                             'from them: old files of your own, or of people you trust')
    parser.add_argument('--allow-partial', action='store_true',
                        help='take a weight file that fits the model only in part, in place of '
                             'stopping there')


def add_config(parser):
    parser.add_argument('config', help='the experiment: a file of configs/, or the one that a '
                                       'training left in its work dir')


def add_checkpoint(parser, more=''):
    parser.add_argument('checkpoint', help='file, URL, or name of a published one' + more)


def parse(parser, argv):
    try:
        args = parser.parse_args(argv)
    except (ValueError, AssertionError, RecursionError) as error:  # from DictAction
        raise UserError('--cfg-options takes KEY=VALUE pairs with balanced brackets and no spaces '
                        f'inside a value, e.g. train_dataloader.batch_size=4 ({error})') from None
    if 'local_rank' in args:
        os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


def load_config(args, *sections, below=''):
    """Read args.config with args.cfg_options, args.work_dir and args.launcher applied.

    Args:
        sections (str): what an experiment must have for the task at hand, e.g. 'model'.
        below (str): folder in the experiment's work dir, where args names no other.
    """
    cfg = read_config(args.config, args.cfg_options, *sections)
    cfg.launcher = args.launcher
    cfg.work_dir = args.work_dir or str(
        Path(cfg.get('work_dir') or Path('work_dirs', Path(args.config).stem), below))
    make_writable(cfg.work_dir, '--work-dir')
    return cfg


def read_config(path, options, *sections):
    """Read a config with ``--cfg-options`` applied and its custom_imports done."""
    check_config_files(Path(path))
    try:
        cfg = Config.fromfile(path, import_custom_modules=False)
    except UserError as error:  # its _base_ names a config that the project does not have
        raise UserError(f'{path}: {error}') from None
    except Exception as error:  # a config is code: whatever running it raises is about the config
        raise UserError(f'{path} cannot be read: {where_in_config(error)}'
                        f'{type(error).__name__}: {error}') from None
    merge_options(cfg, options)
    if cfg.get('custom_imports'):
        try:
            import_modules_from_strings(**cfg.custom_imports)
        except ImportError as error:
            raise UserError(f'{path}: its custom_imports cannot be imported: {error}'
                            ) from None
    for section in sections:
        if not isinstance(cfg.get(section), dict):
            raise UserError(f'{path} is no experiment that this tool can run: its '
                            f'{section!r} is {cfg.get(section)!r}, not a dict '
                            '(files in _base_ are parts of experiments)')
    if not isinstance(cfg.get('load_from'), (str, type(None))):
        raise UserError(f'load_from is {cfg.load_from!r}, not the path of a checkpoint')
    return cfg


def make_writable(folder, flag):
    """Make a folder, or raise UserError when nothing could be written into it."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UserError(f'{flag}: the folder {folder} cannot be made: {error.strerror}') from None
    if not os.access(folder, os.W_OK):
        raise UserError(f'{flag}: the folder {folder} is not writable')


def check_config_files(path, named_by=''):
    """Raise UserError unless the config and all its bases exist and parse."""
    if not path.is_file():
        known = [p for p in sorted(CONFIGS.rglob('*.py')) if p.parent.name != '_base_']
        close = difflib.get_close_matches(path.stem, [p.stem for p in known], n=3)
        close = [os.path.relpath(p) for p in known if p.stem in close]
        raise UserError(f'there is no config file {path}{named_by}'
                        + (f'; did you mean {" or ".join(close)}?' if close and not named_by
                           else ''))
    if path.suffix != '.py':
        return
    try:
        tree = ast.parse(path.read_text(encoding='utf-8'))
    except (SyntaxError, UnicodeDecodeError) as error:
        line = getattr(error, 'lineno', None)
        raise UserError(f'{path} is not a Python file'
                        + (f': line {line}: {error.msg}' if line else f': {error}')) from None
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == '_base_':
            try:
                bases = ast.literal_eval(node.value)
            except ValueError:  # computed: mmengine will see
                continue
            for base in [bases] if isinstance(bases, str) else bases:
                if '::' not in base:  # a config of an installed package
                    check_config_files(path.parent / base, f' (a _base_ of {path})')


def where_in_config(error):
    """'FILE, line N: ' of the config's line that raised, if there is one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename != __file__ and 'site-packages' not in frame.filename:
            return f'{os.path.relpath(frame.filename)}, line {frame.lineno}: '
    return ''


def has_accelerator():
    """Whether mixed precision is possible here (mmengine's AmpOptimWrapper asks the same)."""
    return get_device() not in ('cpu', 'mps')


def fit_precision(cfg):
    """Without an accelerator, train in float32. Returns the lines to log about it."""
    wrapper = cfg.optim_wrapper
    if has_accelerator() or wrapper.type != 'AmpOptimWrapper':
        return []
    wrapper.type = 'OptimWrapper'
    for amp_only in ('loss_scale', 'dtype', 'use_fsdp'):
        wrapper.pop(amp_only, None)
    return ['No accelerator here: training in float32 instead of mixed precision.']


def fit_launcher(cfg):
    """Without an accelerator, let several processes run on CPUs. Returns the lines to log about it.

    Parameter names do not change: checkpoints go from one machine to the other.
    """
    if cfg.launcher == 'pytorch' and 'RANK' not in os.environ:
        raise UserError('--launcher pytorch is for processes that torchrun started: use '
                        'tools/dist_train.sh or tools/dist_test.sh')
    if cfg.launcher != 'none':
        timeout = set_timeout(cfg)
        wait_for_scores()
    if has_accelerator() or cfg.launcher == 'none':
        return []  # (in a single process the runner itself makes SyncBN BN)
    if cfg.launcher != 'pytorch':
        raise UserError(f'--launcher {cfg.launcher} needs GPUs and there are none here; several '
                        'CPU processes run with tools/dist_train.sh (--launcher pytorch)')
    # mmengine would set a CUDA device and pass its number on: begin the process group before it
    # does, and tell DistributedDataParallel that there is no device number.
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo', timeout=timeout)
    defaults = dict(type='MMDistributedDataParallel', broadcast_buffers=False,
                    find_unused_parameters=cfg.get('find_unused_parameters', False))
    cfg.model_wrapper_cfg = {**defaults, **(cfg.get('model_wrapper_cfg') or {}),
                             'device_ids': None}
    cfg.model = without_sync_bn(cfg.model)
    return ['No accelerator here: processes talk through gloo, SyncBN works as BN.']


def fit_strategy(cfg):
    """Fit a config with a strategy (configs/_base_/fsdp.py) to the number of processes.

    Returns the lines to log about it. Does nothing for other configs.
    """
    if 'strategy' not in cfg:
        return []
    if cfg.launcher == 'none':
        use_plain_runner(cfg)
        return ['One process: training without FSDP, which shares a model out among several '
                '(tools/dist_train.sh).']
    # What mmengine's FlexibleRunner would leave out silently, and what FSDP cannot do.
    for key in ('sync_bn', 'compile', 'activation_checkpointing', 'efficient_conv_bn_eval'):
        if cfg.get(key):
            raise UserError(f'{key} does not go together with strategy.type={cfg.strategy.type}')
    if any(str(hook.get('type')).endswith('EMAHook') for hook in cfg.get('custom_hooks') or ()):
        raise UserError(f'EMAHook does not go together with strategy.type={cfg.strategy.type}: '
                        'it copies the model, and no process has the whole of it')
    return []


def use_plain_runner(cfg):
    """Take the strategy out of a config; checkpoints are the same with and without."""
    cfg.pop('runner_type', None)
    cfg.pop('strategy', None)


def without_sync_bn(node):
    """A copy of a config with BN for SyncBN: same parameters, one process's statistics."""
    if isinstance(node, dict):
        copy = type(node)({key: without_sync_bn(value) for key, value in node.items()})
        if copy.get('type') == 'SyncBN':
            copy['type'] = 'BN'
        return copy
    if isinstance(node, (list, tuple)):
        return type(node)(without_sync_bn(value) for value in node)
    return node


def build_runner(cfg):
    if cfg.launcher == 'pytorch':
        wait_for_first()  # it may be checking the data still
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    runner.logger.addFilter(quiet.keep)
    return runner


@contextlib.contextmanager
def orderly_exit():
    """Around a tool's main function: the process group and its threads end with it.

    gloo's threads free the tensors and settings of the last operations. What of those is Python's
    needs the interpreter's lock. A thread that asks for it while the interpreter ends is removed by
    pthread_exit (CPython before 3.14), in the midst of a C++ destructor, which aborts the process:
    status -6 after all went well. Torch joins the threads when nothing refers to the group any
    more. destroy_process_group does not see to that, and models that FSDP or
    DistributedDataParallel wraps refer to it, from reference cycles.
    """
    guard_forks()
    try:
        yield
    except BaseException as error:
        if torch.distributed.is_initialized() and torch.distributed.get_backend() == 'gloo':
            forget_locals(error)
            end_workers()
            # Joining waits for operations under way, and those for other processes, which may
            # never come: torchrun stops them when this process has ended.
            leaving = threading.Thread(target=leave_processes, daemon=True)
            leaving.start()
            leaving.join(PATIENCE)
        because_of_others = about_others(error)
        if because_of_others:
            raise because_of_others from None
        raise
    leave_processes()


def leave_processes():
    """Close the process group, if any, and join its threads. No caller may hold the model."""
    if torch.distributed.is_initialized():
        end_workers()
        torch.distributed.destroy_process_group()
        gc.collect()


def forget_locals(error, done=()):
    """Let go of what the functions that an error ended have held. It prints as before."""
    if error is not None and error not in done:
        traceback.clear_frames(error.__traceback__)
        for behind in (error.__cause__, error.__context__):
            forget_locals(behind, (*done, error))
