# A linear head on the last map of a frozen small FocalNet, on the generated data set: what
# tools/transfer.py --frozen puts other backbones into.
_base_ = [
    '../_base_/demo_focalnet.py',
    '../_base_/models/linear.py',
    '../_base_/datasets/demo_ade20k.py',
    '../_base_/schedules/demo.py',
]

custom_imports = dict(imports=['backbones', 'downstream', 'downstream.heads.linear'])
model = dict(
    data_preprocessor=dict(size=(160, 160)),
    backbone=dict(out_indices=(3, ), **_base_.focalnet),
    decode_head=dict(in_channels=256, num_classes=7))
