# dino_focalnet_l_5scale_12e, tested at a short side of 1200 and a long side of at most 2000 pixels.
# It scores the authors' focalnet_large_fl4_o365_finetuned_on_coco.
# Published: 63.5 box AP after pre-training on Objects365 (0.3 lower at 800/1333). How the model was
# fine-tuned after it (epochs, rate, sizes) is not published; FocalNet-DINO's one recipe has 12
# epochs. (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = 'dino_focalnet_l_5scale_12e.py'

test_pipeline = _base_.test_pipeline
test_pipeline[1] = dict(type='Resize', scale=(2000, 1200), keep_ratio=True)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
