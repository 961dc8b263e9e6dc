"""Files of a few bytes that claim gigabytes, petabytes: refused, and nothing is allocated."""
import io
import json
import pickle
import re
import struct
import zipfile

import numpy as np
import pytest
import torch
from memory import peak_growth

from backbones import pretrained
from backbones.claims import check_values
from backbones.pretrained import load_pretrained, read_checkpoint, read_weights
from downstream.errors import UserError
from downstream.scoring.predictions import load_predictions

GIB = 1 << 30
BOUND = 100 << 20  # bytes that reading any of these files may take
W = b'X\x01\x00\x00\x00w'  # the opcode of the text 'w'


def number(value: int) -> bytes:
    """The opcode of a pickled number."""
    return b'\x8a\x08' + value.to_bytes(8, 'little')


def call(name: str, *args: bytes) -> bytes:
    """The opcodes of a call; args are opcodes of its arguments."""
    module, function = name.rsplit('.', 1)
    return f'c{module}\n{function}\n('.encode() + b''.join(args) + b'tR'


def zipped(files: dict[str, bytes], how=zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w', how, compresslevel=1) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def in_zip(pickled: bytes) -> bytes:
    """A file of torch.save with one entry, whose value these opcodes make."""
    return zipped({'a/data.pkl': b'\x80\x02}' + W + pickled + b's.', 'a/version': b'3\n',
                   'a/byteorder': b'little'})


def saved(value, **how) -> bytes:
    file = io.BytesIO()
    torch.save({'w': value}, file, **how)
    return file.getvalue()


def edited(old: bytes, new: bytes, **more: bytes) -> bytes:
    """A file of torch.save with (4, 25) numbers, changed; the zip is packed."""
    with zipfile.ZipFile(io.BytesIO(saved(torch.ones(4, 25)))) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in files if name.endswith('data.pkl'))
    assert old in files[name]
    files[name] = files[name].replace(old, new)
    data = next(name for name in files if name.endswith('data/0'))
    return zipped({**files, data: more.get('data', files[data])}, zipfile.ZIP_DEFLATED)


def safetensors(header: dict | int) -> bytes:
    if isinstance(header, int):
        return struct.pack('<Q', header) + b'{}'
    text = json.dumps(header).encode()
    return struct.pack('<Q', len(text)) + text + bytes(8)


HEX = b'X\x04\x00\x00\x00aaaa'
for _ in range(40):
    HEX = call('_codecs.encode', HEX, b'X\x03\x00\x00\x00hex')

BOMBS = {
    'shown as a petabyte.pth': lambda: saved(torch.zeros(1).expand(1 << 25, 1 << 25)),
    'without numbers.pth': lambda: saved(torch.empty(1 << 50, device='meta')),
    'sparse.pth': lambda: saved(torch.sparse_coo_tensor(
        torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (GIB, GIB))),
    'quantized.pth': lambda: saved(torch.quantize_per_tensor(torch.ones(3), 1., 0, torch.qint8)),
    'a storage of 2^50.pth': lambda: edited(b'Kd', number(1 << 50)),
    'a shape of 2^50.pth': lambda: edited(b'K\x04K\x19', number(1 << 50) + b'K\x19'),
    'a stride of 2^50.pth': lambda: edited(b'K\x19K\x01', number(1 << 50) + b'K\x01'),
    'packed.pth': lambda: edited(b'Kd', number(GIB // 16), data=bytes(GIB // 4)),
    'an old storage of 2^50.pth': lambda: saved(
        torch.ones(100), _use_new_zipfile_serialization=False).replace(b'Kd', number(1 << 50)),
    'an old storage of 2^30.pth': lambda: saved(
        torch.ones(100), _use_new_zipfile_serialization=False).replace(b'Kd', number(GIB)),
    'a tensor of a number.pth': lambda: in_zip(call('torch.FloatTensor', number(GIB))),
    'an array of a number.pth': lambda: in_zip(call('numpy.ndarray', number(GIB) + b'\x85')),
    'bytes of a number.pth': lambda: in_zip(call('builtins.bytearray', number(GIB))),
    'bytes of a number, old.pth': lambda: in_zip(call('__builtin__.bytearray', number(GIB))),
    'bytes doubled 40 times.pth': lambda: in_zip(HEX),
    'a header of 2^60.safetensors': lambda: safetensors(1 << 60),
    'offsets beyond the end.safetensors': lambda: safetensors(
        {'w': dict(dtype='F32', shape=[1 << 40], data_offsets=[0, 4 << 40])}),
    'a shape of nothing.safetensors': lambda: safetensors(
        {'w': dict(dtype='F32', shape=[1 << 62, 4, 0], data_offsets=[0, 0])}),
}


@pytest.mark.parametrize('name', BOMBS)
def test_bombs(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BOMBS[name]())
    with peak_growth() as grown, pytest.raises(ValueError) as error:
        read_checkpoint(str(path))
    assert grown() < BOUND
    text = str(error.value)
    assert text.startswith(str(path)) and '\n' not in text and 'weights_only' not in text
    assert re.search('claims|would unpack to|not plain|is no weight file, or not all', text)


def test_says_what_is_claimed(tmp_path):
    path = tmp_path / 'w.pth'
    path.write_bytes(BOMBS['shown as a petabyte.pth']())
    with pytest.raises(ValueError, match=(
            r'w.pth has [\d,]+ bytes and claims a tensor of the shape \(33554432, 33554432\), of '
            r'4,503,599,627,370,496: no file of weights does')):
        read_weights(str(path))


def test_what_is_no_bomb(tmp_path):
    """Packed files, shown tensors (a few bytes as some more), bytes, and what holds itself."""
    state = {'a': torch.arange(6.).reshape(2, 3), 'b': torch.ones(1).expand(768),
             'bytes': bytearray(b'\0\xff'), 'array': np.arange(3)}
    state['itself'] = [state]
    path = tmp_path / 'w.pth'
    for how in {}, dict(_use_new_zipfile_serialization=False):
        torch.save(state, path, **how)
        found = read_checkpoint(str(path))
        assert found['a'].equal(state['a']) and found['b'].equal(state['b'])
        assert found['bytes'] == state['bytes'] and found['itself'][0] is found
    path.write_bytes(edited(b'Kd', b'Kd'))
    assert read_checkpoint(str(path))['w'].equal(torch.ones(4, 25))
    check_values(state, 0)


def test_predictions(tmp_path):
    """The pickles of tools/test.py --out hold tensors too."""
    path = tmp_path / 'predictions.pkl'
    good = [dict(img_path='a.jpg', pred_sem_seg=dict(data=torch.ones(1, 2, 2)))]
    path.write_bytes(pickle.dumps(good))
    assert load_predictions(path)[0]['pred_sem_seg']['data'].sum() == 4
    large = torch.zeros(1).expand(GIB, GIB)
    path.write_bytes(pickle.dumps([dict(good[0], x=large)]))
    with pytest.raises(UserError, match='predictions.pkl has .* bytes and claims a tensor'):
        load_predictions(path)
    packed = edited(b'Kd', number(GIB // 16), data=bytes(GIB // 4))
    text = b'B' + struct.pack('<I', len(packed)) + packed
    for pickled in (call('torch.storage._load_from_bytes', text), HEX):
        path.write_bytes(b'\x80\x03' + pickled + b'.')
        with peak_growth() as grown, pytest.raises(UserError):
            load_predictions(path)
        assert grown() < BOUND
    for content in ({}, [], ['a'], [dict(img_path=3)], [dict(img_path='')], 'a', {'img_path': 1}):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(UserError, match='does not hold predictions'):
            load_predictions(path)


def test_names_of_tensors_in_logs_and_messages(tmp_path, monkeypatch):
    """A file's names are a stranger's words: no escapes of a terminal, and not a megabyte."""
    logged = []
    monkeypatch.setattr(pretrained, 'print_log', lambda text, **_: logged.append(text))
    evil = {'\x1b[2Jerror: ' + '9' * 10000: torch.ones(1), '\u202eabc.weight': torch.ones(1)}
    evil |= {f'a{i}.weight': torch.ones(0) for i in range(5000)}
    model = torch.nn.Linear(50, 50)
    torch.save({**model.state_dict(), **evil}, tmp_path / 'w.pth')
    load_pretrained(model, str(tmp_path / 'w.pth'))
    torch.save(evil, tmp_path / 'w.pth')
    with pytest.raises(ValueError) as error:
        load_pretrained(model, str(tmp_path / 'w.pth'))
    for text in (logged[0], str(error.value)):
        assert len(text) < 3000 and all(c.isprintable() or c == '\n' for c in text)
        assert r'\x1b[2Jerror' in text


def test_complex_numbers_are_no_weights_of_a_real_model(tmp_path):
    """torch would leave the imaginary part out, with a warning."""
    model = torch.nn.Linear(2, 3)
    torch.save({name: value * 1j for name, value in model.state_dict().items()},
               tmp_path / 'w.pth')
    with pytest.raises(ValueError, match=r'weight: complex \(3, 2\) in the file, \(3, 2\) in the'):
        load_pretrained(model, str(tmp_path / 'w.pth'))


def test_keys_that_are_no_names(tmp_path):
    torch.save({'weight': torch.ones(3, 2), 'bias': torch.ones(3), 5: torch.ones(1)},
               tmp_path / 'w.pth')
    model = torch.nn.Linear(2, 3)
    assert load_pretrained(model, str(tmp_path / 'w.pth')) == ([], [])
    assert model.weight.sum() == 6
