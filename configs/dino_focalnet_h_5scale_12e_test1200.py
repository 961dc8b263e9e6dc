# dino_focalnet_h_5scale_12e, tested at a short side of 1200 and a long side of at most 2000 pixels.
# Published, after pre-training on Objects365: 64.3 box AP on minival (Focal Modulation Networks,
# arXiv 2203.11926, abstract; 64.2 in the news of the authors' README), 64.4 on test-dev. How it was
# trained and at which size it was tested is not published, and no file of it is known here.
_base_ = 'dino_focalnet_h_5scale_12e.py'

test_pipeline = _base_.test_pipeline
test_pipeline[1] = dict(type='Resize', scale=(2000, 1200), keep_ratio=True)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
