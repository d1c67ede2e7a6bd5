"""`python -m rdna_jit demo`: quantised kernels on real input, without a card.

First a sentence encoder (MiniLM-L6) whose linear layers are quantised and computed by our kernels,
compared with fp32 torch and with torch on the same dequantised weights; then one mixture of experts
layer at a served model's shape against its float64 oracle. `--format` runs the encoder alone, in
the formats that it names.
"""
