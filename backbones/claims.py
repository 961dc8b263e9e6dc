"""What a weight file says that it holds, against what it can hold.

A few bytes can claim petabytes: a packed zip, one number that is shown as 2^50 (stride 0), a tensor
without numbers, an array that is made and never filled. Such files are refused before anything of
that size is allocated or computed with.
"""
import zipfile
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import IO

import numpy as np
import torch
from torch import Tensor, _weights_only_unpickler

MOST = 10  # times its size is more than a file of weights holds: they hardly pack
LEAST = 1 << 26  # bytes that any file may claim


class Claims(ValueError):
    """The message says what a file claims; it goes behind the file's name."""


def bytes_of(*args) -> bytearray:
    """bytearray, but not of so many zeros as a number says: four bytes would fill the memory."""
    if args and not isinstance(args[0], str | bytes):
        raise UnpicklingError('a bytearray that is made of a number')
    return bytearray(*args)


def encoded(text: str, encoding: str) -> bytes:
    """How pickles of protocol 2 write bytes; 'hex' of 'hex' of ... would double them each time."""
    if encoding not in ('latin1', 'latin-1'):
        raise UnpicklingError(f'bytes in the encoding {encoding!r:.40}')
    return text.encode(encoding)


# What torch.load(weights_only=True) calls by these names, ours in their place. There is no public
# way: names of its own come first there. (test_claims.py notices when a torch has no such place.)
_weights_only_unpickler._get_allowed_globals().update({
    'builtins.bytearray': bytes_of, '_codecs.encode': encoded})


def limit(size: int) -> int:
    """The bytes that a file of ``size`` bytes may claim."""
    return max(MOST * size, LEAST)


def check_packed(file: str | IO[bytes], size: int):
    """Raise Claims where a zip of ``size`` bytes would unpack to far more.

    torch.save packs nothing, but torch.load unpacks.
    """
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            total = sum(info.file_size for info in archive.infolist())
        if total > limit(size):
            raise Claims(f'has {size:,} bytes and would unpack to {total:,}: no file of weights '
                         'does')


def check_values(content, size: int):
    """Raise Claims where what was read of a file of ``size`` bytes claims far more.

    All of its tensors have to be plain ones: on a real device, with one number an element.
    """
    for value in values_in(content):
        if isinstance(value, Tensor):
            if (value.is_nested or value.layout != torch.strided or value.is_quantized
                    or value.is_meta):
                raise Claims('holds a tensor that is not plain (it is sparse, quantized, nested or '
                             'without numbers): weights here are dense')
            claimed = value.numel() * value.element_size()
            what = f'a tensor of the shape {tuple(value.shape)}'
        elif isinstance(value, np.ndarray):
            claimed, what = value.nbytes, f'an array of the shape {value.shape}'
        elif isinstance(value, bytes | bytearray):
            claimed, what = len(value), 'a string'
        else:
            continue
        if claimed > limit(size):
            raise Claims(f'has {size:,} bytes and claims {what}, of {claimed:,}: no file of '
                         'weights does')


def values_in(content) -> Iterator:
    """All that plain containers and attributes hold, each once, though they may hold themselves."""
    waiting, seen = [content], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif not isinstance(value, Tensor | np.ndarray | type):
            waiting += vars(value).values() if hasattr(value, '__dict__') else ()
