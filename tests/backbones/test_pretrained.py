"""Loading published weight files."""
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from backbones.pretrained import load_pretrained, read_weights


def save(tmp_path, content):
    path = tmp_path / 'weights.pth'
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize('wrap', [
    lambda s: s,
    lambda s: {'model': s, 'epoch': 3},
    lambda s: {'state_dict': {f'module.{k}': v for k, v in s.items()}},
    lambda s: {'meta': {}, 'state_dict': {**{f'backbone.{k}': v for k, v in s.items()},
                                          'neck.convs.0.weight': torch.zeros(1)}},
    lambda s: {'state_dict': {f'module.visual.{k}': v for k, v in s.items()}},
], ids=['bare', 'model', 'module.', 'detector', 'module.visual.'])
def test_finds_the_weights(tmp_path, wrap):
    state = nn.Linear(2, 3).state_dict()
    assert set(read_weights(save(tmp_path, wrap(state)))) == set(state)


def test_reports_what_was_loaded(tmp_path):
    source = nn.Sequential(nn.Linear(50, 50), nn.LayerNorm(50))
    state = {k: v + 1 for k, v in source.state_dict().items()}
    del state['1.bias']
    state['head.weight'] = torch.zeros(1)
    model = nn.Sequential(nn.Linear(50, 50), nn.LayerNorm(50))
    missing, unexpected = load_pretrained(model, save(tmp_path, state))
    assert (missing, unexpected) == (['1.bias'], ['head.weight'])
    assert model[0].weight.equal(state['0.weight'])


def test_refuses_another_models_weights(tmp_path):
    path = save(tmp_path, nn.Linear(5, 9).state_dict())
    model = nn.Linear(4, 9)
    before = model.weight.clone()
    with pytest.raises(ValueError, match=r'fits only 20% .* of Linear(.|\n)*weight: \(9, 5\) in '
                       r'the file, \(9, 4\) in the model'):
        load_pretrained(model, path)
    assert model.weight.equal(before)


class Evil:

    def __reduce__(self):
        return exec, ('import builtins; builtins.backbones_test_was_executed = True', )


def test_never_executes_a_weight_file(tmp_path):
    import builtins
    path = save(tmp_path, {'model': {'weight': torch.zeros(1)}, 'note': Evil()})
    with pytest.raises(ValueError, match='is not executed'):
        read_weights(path)
    (tmp_path / 'raw.pth').write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError):
        read_weights(str(tmp_path / 'raw.pth'))
    assert not hasattr(builtins, 'backbones_test_was_executed')


def test_unreadable_files(tmp_path):
    with pytest.raises(ValueError, match='no weight file at .*nowhere.pth'):
        read_weights(str(tmp_path / 'nowhere.pth'))
    path = save(tmp_path, {'w': torch.zeros(1000)})
    whole = Path(path).read_bytes()
    for content in (b'', b'hello', b'\200\002.', b'not a checkpoint', whole[:len(whole) // 2]):
        (tmp_path / 'broken.pth').write_bytes(content)
        with pytest.raises(ValueError, match='broken.pth'):
            read_weights(str(tmp_path / 'broken.pth'))
    with pytest.raises(ValueError, match='holds no tensors'):
        read_weights(save(tmp_path, {'epoch': 3}))
