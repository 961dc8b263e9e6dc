"""Loading published weight files: any names, any wrapping, never executing anything."""
import argparse
import builtins
import pickle
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from golden_utils import assert_close_to_golden, golden_input, load_golden, rule_value
from torch import nn

import backbones
from backbones import pretrained
from backbones.pretrained import kind_of, load_pretrained, match, our_names, read_weights


def save(tmp_path, content, name='weights.pth'):
    path = tmp_path / name
    torch.save(content, path)
    return str(path)


def shapes(golden, key='keys'):
    """A golden file's entries, on the meta device."""
    return {name: torch.empty(shape, device='meta') for name, shape, *_ in golden[key]}


def prefixed(prefix, state):
    return {prefix + name: value for name, value in state.items()}


# ---------------------------------------------------------------------------- names and wrapping

@pytest.mark.parametrize('wrap', [
    lambda s: s,
    lambda s: {'model': s, 'epoch': 3},
    lambda s: {'teacher': prefixed('backbone.', s), 'student': s},
    lambda s: {'state_dict': prefixed('module.', s)},
    lambda s: {'meta': {}, 'state_dict': {**prefixed('backbone.', s), 'neck.0.weight': s['bias']}},
    lambda s: {'state_dict': {**prefixed('module.visual.', s), 'module.logit_scale': s['bias']}},
    lambda s: {'model': {**prefixed('backbone.0.', s), 'class_embed.0.weight': s['bias']}},
    lambda s: prefixed('model.module.', s),
    lambda s: {'model': s, 'args': argparse.Namespace(lr=1e-4, out=['a', None])},
], ids=['bare', 'model', 'teacher', 'module.', 'detector', 'CLIP-like', 'DINO', 'both', 'args'])
def test_finds_the_weights(tmp_path, wrap):
    state = nn.Linear(2, 3).state_dict()
    found, naming = read_weights(save(tmp_path, wrap(state)))
    assert naming == 'ours' and found.keys() == state.keys()
    assert all(found[name].equal(value) for name, value in state.items())


def test_safetensors(tmp_path):
    state = nn.Linear(2, 3).state_dict()
    safetensors.torch.save_file(state, tmp_path / 'w.safetensors')
    found, _ = read_weights(str(tmp_path / 'w.safetensors'))
    assert found['weight'].equal(state['weight'])
    (tmp_path / 'broken.safetensors').write_bytes(b'hello')
    with pytest.raises(ValueError, match='broken.safetensors is no weight file, or not all of it'):
        read_weights(str(tmp_path / 'broken.safetensors'))


@pytest.mark.parametrize('name, library', [('timm_focalnet_tiny_lrf', 'timm'),
                                           ('hf_focalnet_tiny_lrf', 'transformers')])
def test_other_libraries_focalnet_computes_the_same(tmp_path, name, library):
    golden = load_golden(name)
    state = {key: rule_value(key, shape) for key, shape, _ in golden['keys']}
    assert read_weights(path := save(tmp_path, state))[1] == library
    model = backbones.FocalNet(focal_windows=(3, 3, 3, 3), drop_path_rate=0., init_cfg=dict(
        type='Pretrained', checkpoint=path))
    model.init_weights()
    run, = golden['runs']
    with torch.no_grad():
        outs = model.eval()(golden_input(run['input']))
    for out, record in zip(outs, run['outputs'], strict=True):
        assert_close_to_golden(out, record)


def in_timm(name):
    """timm's name for one of ours, in a model with post-norm, and what it does to the shape."""
    name = re.sub(r'gamma_(\d)', r'ls\1.gamma', name)
    name = re.sub(r'(blocks\.\d+\.norm\d)', r'\1_post', name)
    name = re.sub(r'layers\.(\d)\.downsample',
                  lambda m: f'layers.{int(m[1]) + 1}.downsample', name)
    return name.replace('patch_embed', 'stem').replace('.ln.', '.norm.')


def in_transformers(name):
    name = re.sub(r'layers\.(\d)\.blocks\.(\d+)', r'encoder.stages.\1.layers.\2', name)
    name = re.sub(r'layers\.(\d)\.downsample\.', r'encoder.stages.\1.downsample.', name)
    name = name.replace('downsample.proj.', 'downsample.projection.')
    name = name.replace('patch_embed.proj.', 'embeddings.patch_embeddings.projection.')
    name = name.replace('patch_embed.norm.', 'embeddings.norm.')
    for ours, theirs in (('f', 'projection_in'), ('h', 'projection_context'),
                         ('proj', 'projection_out'), ('ln', 'layernorm')):
        name = name.replace(f'modulation.{ours}.', f'modulation.{theirs}.')
    return f'focalnet.{name}'


@pytest.mark.parametrize('rename, library', [(in_timm, 'timm'), (in_transformers, 'transformers')])
@pytest.mark.parametrize('dim, levels, window, kind', [
    (192, 3, 5, 'L fl3'), (192, 4, 3, 'L fl4'), (256, 3, 5, 'XL fl3'), (256, 4, 3, 'XL fl4'),
    (352, 3, 3, 'H fl3'), (352, 4, 3, 'H fl4')])
def test_large_focalnets_of_other_libraries(rename, library, dim, levels, window, kind):
    """Post-norm, layer scale and the norm inside the modulation have names of their own in timm.

    (The names are those of timm 1.0.31 and transformers 5.24, read in their sources.)
    """
    with torch.device('meta'):
        own = backbones.FocalNet(
            embed_dim=dim, depths=(2, 2, 18, 2), focal_levels=(levels, ) * 4,
            focal_windows=(window, ) * 4, use_conv_embed=True, use_layerscale=True,
            use_postln=True, use_postln_in_modulation=dim == 352).state_dict()
    theirs = {}
    for name, value in own.items():
        if re.match(r'norm\d', name):  # ours alone
            continue
        linear = value.ndim == 2 and library == 'timm'
        theirs[rename(name)] = value[..., None, None] if linear else value
    theirs['head.fc.weight' if library == 'timm' else 'classifier.weight'] = own['norm0.bias']
    state, found = our_names(theirs)
    assert found == library
    assert kind_of(state) == f'FocalNet-{kind} (first kernel {window})'
    result = match(state, own, 'file')
    assert result.unexpected == ['head.weight'] and not result.wrong
    assert result.missing == [name for name in own if re.match(r'norm\d', name)]


def test_names_of_timm_as_its_release_has_them():
    """The table above, against the recorded names of the small model (which has pre-norm)."""
    ours = {name: None for name in our_names(shapes(load_golden('timm_focalnet_tiny_lrf')))[0]}
    recorded = {name for name, *_ in load_golden('timm_focalnet_tiny_lrf')['keys']}
    assert {in_timm(name).replace('_post', '').replace('head.', 'head.fc.')
            for name in ours} == recorded
    recorded = {f'focalnet.{name}' for name, *_ in load_golden('hf_focalnet_tiny_lrf')['keys']}
    assert {in_transformers(name) for name in ours if 'head' not in name} - recorded == {
        'focalnet.norm.weight', 'focalnet.norm.bias'}


LOCALVIT = 'LocalViT on {}, {} channels'


@pytest.mark.parametrize('golden, model, kind, left_out', [
    ('container_light', 'Container', 'CONTAINER-Light', ''),
    ('localvit_t', 'LocalViT', 'LocalViT-T', ''),
    ('localvit_t_se4', 'LocalViT', 'LocalViT-T-SE4', ''),
    ('localvit_pvt_t', 'LocalViTPVT', LOCALVIT.format('PVT', 64), r'norm\.'),
    ('localvit_swin_t', 'LocalViTSwin', LOCALVIT.format('Swin', 96), r'norm\.'),
    ('localvit_tnt_t', 'LocalViTTNT', LOCALVIT.format('TNT', 192), ''),
    ('localvit_t2t_7', 'LocalViTT2T', LOCALVIT.format('T2T-ViT', 256), ''),
    ('convert_t_lrf_k3_to_k9', 'FocalNet', 'FocalNet-T lrf (first kernel 3)', r'norm\.'),
    ('convert_t_srf_k3_to_lrf_k9', 'FocalNet', 'FocalNet-T srf (first kernel 3)', r'norm\.'),
])
def test_classification_files_of_every_family(golden, model, kind, left_out):
    """Everything that the backbone has is filled, everything but the classifier is used."""
    content = load_golden(golden)
    state, _ = our_names(shapes(content, 'keys' if 'keys' in content else 'checkpoint_keys'))
    assert kind_of(state) == kind
    options = dict(reduction=4) if golden == 'localvit_t_se4' else {}
    with torch.device('meta'):
        model = getattr(backbones, model)(**options)
    result = match(state, model.state_dict(), golden, model._adapt_weights)
    assert all(re.match(rf'head\.|{left_out or "$"}', name) for name in result.unexpected)
    norms = [f'norm{i}.{leaf}' for i in range(4) for leaf in ('weight', 'bias')]
    expected = content.get('missing', norms if golden == 'localvit_swin_t' else [])
    assert sorted(result.missing) == sorted(expected) and not result.wrong


# ------------------------------------------------------------------------------------ the report

def test_reports_what_was_loaded(tmp_path, monkeypatch):
    logged = []
    monkeypatch.setattr(pretrained, 'print_log', lambda text, **_: logged.append(text))
    source = nn.Sequential(nn.Linear(50, 50), nn.LayerNorm(50))
    state = {k: v + 1 for k, v in source.state_dict().items()}
    del state['1.bias']
    state['head.weight'] = torch.zeros(1)
    model = nn.Sequential(nn.Linear(50, 50), nn.LayerNorm(50))
    missing, unexpected = load_pretrained(model, save(tmp_path, state))
    assert (missing, unexpected) == (['1.bias'], ['head.weight'])
    assert model[0].weight.equal(state['0.weight'])
    assert '3 of 4 tensors loaded' in logged[0] and 'not used: head (1)' in logged[0]


def test_summary_of_a_resized_file():
    content = load_golden('convert_t_srf_k3_to_lrf_k9')
    with torch.device('meta'):
        model = backbones.FocalNet()
    text = str(match(shapes(content, 'checkpoint_keys'), model.state_dict(), '',
                     model._adapt_weights))
    assert text == (
        '208 of 228 tensors loaded, 48 of them resized: 24 x 1 gate added, 12 x kernel padded '
        '3 -> 9, 12 x kernel padded 5 -> 11\n'
        '  of another shape: none\n'
        '  not in the file: layers.*.blocks.*.modulation.focal_layers.*.* (12), norm0 (2), '
        'norm1 (2), norm2 (2), norm3 (2)\n'
        '  in the file but not used: norm (2), head (2)')


@pytest.mark.parametrize('file, model', [
    (dict(), dict(depths=(2, 2, 18, 2))),  # T, S
    (dict(depths=(2, 2, 18, 2)), dict()),  # S has all that T has
    (dict(embed_dim=128, depths=(2, 2, 18, 2)), dict(depths=(2, 2, 18, 2))),  # B, S
    (dict(focal_levels=(3, ) * 4), dict(focal_levels=(2, ) * 4)),  # lrf, srf
])
def test_says_which_variant_the_file_is(file, model):
    with torch.device('meta'):
        source, target = backbones.FocalNet(**file), backbones.FocalNet(**model)
    state, own = source.state_dict(), target.state_dict()
    with pytest.raises(ValueError, match=re.escape(
            f'The file is {kind_of(state)}, the model {kind_of(own)}.')) as error:
        match(state, own, 'w.pth', target._adapt_weights)
    assert '--allow-partial' in str(error.value)
    if 'embed_dim' not in file:  # else nothing fits
        assert match(state, own, 'w.pth', target._adapt_weights, allow_partial=True).fits


def test_refuses_another_models_weights(tmp_path):
    path = save(tmp_path, backbones.FocalNet(embed_dim=8, depths=(1, 1, 1, 1)).state_dict())
    model = backbones.FocalNet(embed_dim=8, depths=(1, 1, 3, 1), init_cfg=dict(
        type='Pretrained', checkpoint=path))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r'weights.pth fills \d\d% of the backbone'):
        model.init_weights()
    assert all(before[name].equal(value) for name, value in model.state_dict().items())
    model.init_cfg['allow_partial'] = True
    model.init_weights()
    state = torch.load(path)
    assert all(model.state_dict()[name].equal(value) for name, value in state.items())


# ---------------------------------------------------------------------------------------- safety

class Evil:

    def __reduce__(self):
        return exec, ('import builtins; builtins.backbones_test_was_executed = True', )


@pytest.fixture
def executed():
    yield lambda: hasattr(builtins, 'backbones_test_was_executed')
    vars(builtins).pop('backbones_test_was_executed', None)


def test_never_executes_a_weight_file(tmp_path, executed):
    path = save(tmp_path, {'model': {'weight': torch.zeros(1)}, 'note': Evil()})
    with pytest.raises(ValueError, match=r'\(exec\).* is refused.*--trust-checkpoint'):
        read_weights(path)
    (tmp_path / 'raw.pth').write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError):
        read_weights(str(tmp_path / 'raw.pth'))
    assert not executed()


def test_trust_is_for_one_file(tmp_path, executed, monkeypatch):
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '1')
    path = save(tmp_path, {'model': {'weight': torch.ones(1)}, 'note': Evil()})
    monkeypatch.setattr(pretrained, 'TRUSTED', {str(tmp_path / 'another.pth')})
    with pytest.raises(ValueError, match='--trust-checkpoint'):
        read_weights(path)
    assert not executed()
    monkeypatch.setattr(pretrained, 'TRUSTED', {path})
    assert read_weights(path)[0]['weight'] == 1
    assert executed()  # which shows that the test above would notice
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=False)  # everything else stays safe


def test_unreadable_files(tmp_path):
    with pytest.raises(ValueError, match='there is no weight file .*nowhere.pth'):
        read_weights(str(tmp_path / 'nowhere.pth'))
    path = save(tmp_path, {'w': torch.zeros(1000)})
    whole = Path(path).read_bytes()
    for content in (b'', b'hello', b'\200\002.', b'not a checkpoint', whole[:len(whole) // 2]):
        (tmp_path / 'broken.pth').write_bytes(content)
        with pytest.raises(ValueError, match='broken.pth'):
            read_weights(str(tmp_path / 'broken.pth'))
    for content in ({'epoch': 3}, {1: torch.zeros(1)}, {'state_dict': [1]}, [1, 2]):
        with pytest.raises(ValueError, match='without named tensors'):
            read_weights(save(tmp_path, content))
