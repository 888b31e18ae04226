"""The target's own draw in torch operators, for logits that stay on a device."""
