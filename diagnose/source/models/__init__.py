"""The model in the source: where it is built, wrapped, compiled and used.

training ──▶ model_construction ──▶ construction_end, model_uses, model_methods
                   └──▶ compilation, lightning, image_models, model_loss, unused_classes
                             └──▶ wrapped_uses
"""
