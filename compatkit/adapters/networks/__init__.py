"""Small networks for small images, in plain torch and with timm's interface; ``adapters.timm`` registers them."""
