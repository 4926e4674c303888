"""Constants, lengths, errors, the request contract and the tensors between stages."""
