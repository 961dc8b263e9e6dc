# dino_focalnet_l_5scale_36e, tested at a short side of 1200 and a long side of at most 2000 pixels.
_base_ = 'dino_focalnet_l_5scale_36e.py'

test_pipeline = _base_.test_pipeline
test_pipeline[1] = dict(type='Resize', scale=(2000, 1200), keep_ratio=True)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
