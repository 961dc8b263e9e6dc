"""Weight files with anything in them: loaded as they are, or refused with one message."""
import io
import json
import struct
import zipfile

import safetensors.torch
import torch
from fuzzing import bounded, damaged, examples
from hypothesis import given
from hypothesis import strategies as st

import backbones
from backbones.pretrained import load_pretrained
from downstream.errors import UserError
from downstream.heads.dino import recorded_variant
from downstream.training.checkpoints import load_from_file
from downstream.training.fine_tuning import classes_of


def model() -> backbones.FocalNet:
    return backbones.FocalNet(embed_dim=4, depths=(1, 1, 1, 1))


torch.manual_seed(0)
STATE = {name: value + 1 for name, value in model().state_dict().items()}


def saved(content, **how) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **how)
    return buffer.getvalue()


def told(text: str):
    """A message is a few lines that a terminal can show, whatever names are in it."""
    assert 0 < len(text) < 3000 and all(c.isprintable() or c == '\n' for c in text)


def loads_or_tells(content: bytes, name: str) -> dict | None:
    """What a file does to a backbone and to mmengine's loaders; gives the backbone's tensors."""
    with bounded() as folder:
        path = folder / name
        path.write_bytes(content)
        net = model()
        before = {key: value.clone() for key, value in net.state_dict().items()}
        try:
            missing, _ = load_pretrained(net, str(path))
        except ValueError as error:
            told(str(error))
            after = net.state_dict()
            assert all(value.equal(after[key]) for key, value in before.items())
            missing = None
        try:
            meta = load_from_file(str(path)).get('meta') or {}
            assert isinstance(classes_of({'meta': meta}), list | tuple)
            assert isinstance(recorded_variant(meta), dict)
        except UserError as error:
            told(str(error))
        return missing if missing is None else {
            key: value for key, value in net.state_dict().items() if key not in missing}


PLAIN = {'x.pth': saved({'state_dict': STATE, 'meta': {'epoch': 3}}),
         'old.pth': saved({'model': STATE}, _use_new_zipfile_serialization=False),
         'x.safetensors': safetensors.torch.save(STATE)}


def pickled(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return next(file.read(name) for name in file.namelist() if name.endswith('data.pkl'))


def with_pickle(content: bytes, new: bytes) -> bytes:
    """A file of torch.save with another description of what it holds."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, 'w') as file:
        for name in old.namelist():
            file.writestr(name, new if name.endswith('data.pkl') else old.read(name))
    return buffer.getvalue()


@examples(50)
@given(st.sampled_from(sorted(PLAIN.items())).flatmap(lambda pair: st.tuples(
    st.just(pair[0]), damaged(pair[1]))))
def test_fuzz_bytes(file):
    """No checksum guards numbers, but what is loaded has the model's names and shapes."""
    name, content = file
    loads_or_tells(content, name)


@examples(60)
@given(damaged(pickled(PLAIN['x.pth'])))
def test_fuzz_pickles(content):
    loads_or_tells(with_pickle(PLAIN['x.pth'], content), 'x.pth')


HEADER = json.loads(PLAIN['x.safetensors'][8:8 + struct.unpack(
    '<Q', PLAIN['x.safetensors'][:8])[0]])


@examples(40)
@given(damaged(json.dumps(HEADER).encode()), st.integers(-4, 4))
def test_fuzz_safetensors_headers(header, off):
    size = max(len(header) + off, 0)
    loads_or_tells(struct.pack('<Q', size) + header + PLAIN['x.safetensors'][-4000:],
                   'x.safetensors')


# -- names and shapes --------------------------------------------------------------------------

KEYS = [0, None, (1, 'a'), 2.5, True]
KINDS = [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64]
OTHERS = [None, 1, 'a', [], {}, {'a': torch.ones(1)}]
PREFIXES = ['module.', 'model.', 'backbone.', 'backbone.0.', 'visual.', 'ema_', '0.', 'layers.9.']
# What tells of families, of other libraries' names and of the releases of DINO.
NAMES = ['cls_token', 'pos_embed', 'blocks.0', 'patch_embed.proj.weight', 'stem.0',
         'focalnet.embeddings', 'relative_position_bias_table', 'label_enc.weight',
         'bbox_head.label_embedding.weight', 'class_embed.0.weight', 'transformer.level_embed',
         'module.transformer.enc_out_class_embed.weight',
         'transformer.decoder.class_embed.0.weight', '\x1b[2J', 'x' * 9999, '.', '']
TENSORS = [torch.ones(()), torch.ones(3), torch.ones(2, 3), torch.ones(0)]
LAYOUTS = [torch.Tensor.to_sparse, torch.t, lambda value: value.to('meta'), torch.nn.Parameter]
HOW = {
    'rename': lambda state, name, name_of, n: {
        **{key: value for key, value in state.items() if key != name}, name_of: state[name]},
    'key': lambda state, name, _, n: {**state, KEYS[n % len(KEYS)]: state[name]},
    'remove': lambda state, name, _, n: {
        key: value for key, value in state.items() if key != name},
    'shape': lambda state, name, _, n: {**state, name: torch.zeros([int(i) for i in str(n)])},
    'kind': lambda state, name, _, n: {**state, name: state[name].to(KINDS[n % len(KINDS)])},
    'value': lambda state, name, _, n: {**state, name: OTHERS[n % len(OTHERS)]},
    'wrap': lambda state, name, _, n: {
        PREFIXES[n % len(PREFIXES)] + str(key): value for key, value in state.items()},
    'more': lambda state, name, _, n: {**state, NAMES[n % len(NAMES)]: TENSORS[n % len(TENSORS)]},
    'layout': lambda state, name, _, n: {
        **state, name: LAYOUTS[n % len(LAYOUTS)](state[name].reshape(1, -1))},
}
TOPS = ['', 'state_dict', 'model', 'teacher', 'odd']
METAS = [None, 3, {'dino': 3, 'experiment_name': 4},
         {'dino': {'two_stage': [], 'num_queries': '9'}, 'dataset_meta': {'classes': 3}},
         {'dataset_meta': [], 'CLASSES': [1]}]


def edited(edits: list, top: str, meta) -> dict:
    """The tensors with some renamed, left out, of another shape or kind, or none at all."""
    state = dict(STATE)
    for how, place, name, number in edits:
        old = list(state)[place % len(state)]
        plain = isinstance(state[old], torch.Tensor) and state[old].layout == torch.strided
        if plain or how not in ('kind', 'layout'):
            state = HOW[how](state, old, name, number) or state
    return {top: state, 'meta': meta} if top else state


@examples(40)
@given(st.lists(st.tuples(st.sampled_from(sorted(HOW)), st.integers(0, 99), st.text(max_size=20),
                          st.integers(0, 9999)), min_size=1, max_size=4),
       st.sampled_from(TOPS), st.sampled_from(METAS))
def test_fuzz_tensors(edits, top, meta):
    """What is filled has the file's numbers."""
    content = edited(edits, top, meta)
    tensors = content[top] if top else content
    found = loads_or_tells(saved(content), 'x.pth')
    for name, value in (found or {}).items():
        assert value.shape == STATE[name].shape and value.dtype == STATE[name].dtype
        given = [v for key, v in tensors.items()
                 if isinstance(key, str) and key.endswith(name) and isinstance(v, torch.Tensor)]
        assert not given or any(v.shape == value.shape and v.to(value.dtype).equal(value)
                                for v in given)
