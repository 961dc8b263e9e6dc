"""One clear message for what a person can put right; a traceback for everything else."""
import contextlib
import errno
import os
import re
import reprlib
import sys
import traceback

# What --cfg-options has set (downstream.training.options): the first suspects where building fails.
options = {}
# Kinds of errors that a wrong value in a config ends in, somewhere in the libraries.
LIKELY = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError,
          RuntimeError, TypeError, ValueError)
SHOW = 'DOWNSTREAM_TRACEBACK'
DISK_FULL = errno.ENOSPC, errno.EDQUOT  # of an OSError; the second is a quota's


class UserError(Exception):
    """Bad input. The message says what is wrong, where, and what to do about it.

    Takes one string, so that a DataLoader worker's error can be raised again in the main process.
    """


@contextlib.contextmanager
def one_message(interrupted):
    """Around a tool's main function: bad input ends it with one ``error:`` line and status 1.

    Args:
        interrupted (str): what to say when the person stops the tool (status 130).
    """
    try:
        yield
    except KeyboardInterrupt:
        if first_to_say():
            print(f'interrupted: {interrupted}', file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not first_to_say():
            sys.exit(1)
        message = user_message(error)
        if message is None:
            raise
        sys.exit(f'error: {printable(message)}')
    finally:
        options.clear()


def first_to_say() -> bool:
    """Whether none of the processes that tools/launch.py started has said why it ends.

    What one finds wrong others find too, or they find it gone.
    """
    said = os.environ.get('DOWNSTREAM_SAID')
    try:
        if said:
            os.close(os.open(said, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def shown(value) -> str:
    """What somebody wrote, for a message: its beginning, however long or deep it is."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlong = 3, 80, 80, 40
    return short.repr(value)


def printable(text: str) -> str:
    """Text for a terminal: control characters of other people's names, as Python writes them."""
    return ''.join(c if c.isprintable() or c == '\n' else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """:func:`printable` text of one line: names of files may hold line breaks."""
    return printable(text).replace('\n', '\\n')


def user_message(error):
    """The text to show alone when the person can put the error right, None otherwise.

    That is a UserError; a ValueError that a backbone raises about its arguments; mmengine's
    registry refusing a config's ``type`` or argument name; and, with --cfg-options, what comes of a
    value that the libraries do not take. Looks behind what wraps it.
    """
    outermost = error
    while error is not None:
        text = str(error.args[0]) if error.args else str(error)
        if isinstance(error, UserError):
            # A worker's error arrives with the worker's traceback before its own text.
            return re.split(r'^\S*\bUserError: ', text, flags=re.MULTILINE)[-1].strip()
        raised_in = ['', *(frame.f_globals.get('__name__', '')
                           for frame, _ in traceback.walk_tb(error.__traceback__))][-1]
        if isinstance(error, ValueError) and raised_in.split('.')[0] == 'backbones':
            return text
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            place = f', where {error.filename} is' if error.filename else ''
            return (f'the disk is full{place} (or a quota is used up): make room, or write to '
                    'another disk')
        if type(error).__name__ == 'OutOfMemoryError' or "can't allocate memory" in text:
            return out_of_memory(text)
        if isinstance(error, RuntimeError) and (
                named := re.match(r'(\S+) does not have a deterministic implementation', text)):
            return (f'--deterministic: {named[1]} of torch has no deterministic version on this '
                    'device; train without, or with another layer')
        if (isinstance(error, (KeyError, TypeError))
                and raised_in == 'mmengine.registry.build_functions'):
            return f'the config cannot be built: {text.split(" Please check")[0]}'
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return about_options(outermost) if options and not os.environ.get(SHOW) else None


def about_options(error):
    """What to say of an error that --cfg-options may have brought about; None if not.

    That is until the first iteration is done.
    """
    if not isinstance(error, LIKELY) or 'CUDA error' in str(error):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    counts = [getattr(frame.f_locals.get('self'), '_iter', 0) for frame in frames]
    if any(isinstance(count, int) and count > 0 for count in counts):
        return None
    built = [frame.f_locals.get('cfg') for frame in frames
             if frame.f_code.co_name == 'build_from_cfg']
    # (Loops build data loaders and metrics, most of them in other ways.)
    built = [cfg for cfg in built if isinstance(cfg, dict) and 'type' in cfg
             and not str(cfg['type']).endswith('Loop')]
    # What the error names; or arguments of the innermost thing that was being built.
    near = [key for key in options if re.search(rf"'{re.escape(key.split('.')[-1])}'", str(error))]
    near = near or next((found for cfg in reversed(built)
                         if (found := [key for key in options if sets(key, cfg)])), [])
    said = f'with --cfg-options {key_values(near or options)}: '
    if built:
        kind = built[-1]['type']
        said += f'{kind if isinstance(kind, str) else kind.__name__} cannot be built: '
    # A worker's error arrives with the worker's traceback before its own text.
    text = str(error).strip().splitlines() or ['']
    said += text[-1] if text[0].startswith('Caught ') else f'{type(error).__name__}: {text[0]}'
    return f'{said[:500]}\n({SHOW}=1 in the environment shows where.)'


def sets(key, cfg):
    """Whether an option is an argument of what a config describes."""
    name = key.split('.')[-1]
    return name in cfg and (cfg[name] is options[key] or cfg[name] == options[key])


def key_values(keys):
    return ' '.join(f'{key}={options[key]}'[:120] for key in keys)


def out_of_memory(text):
    """What to do when a batch does not fit; ``text`` is torch's message."""
    asked = re.search(r'(?:allocate|allocate memory: you tried to allocate) ([\d.]+ \w+)', text)
    free = re.search(r'of which ([\d.]+ \w+) is free', text)
    return ('the batch does not fit into memory: ' + (f'{asked[1]} more were needed' if asked else
                                                      'more was needed than there is')
            + (f', {free[1]} were free' if free else '')
            + '. Take fewer images an iteration (--batch 1, with --accumulate N for the same '
              'images a step), smaller ones (the sizes in train_pipeline), or recompute '
              'activations (--cfg-options model.backbone.use_checkpoint=True, for the backbones '
              'here; with_cp=True for ResNet and Swin)')
