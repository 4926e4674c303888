"""Client of the MiniMax-H3 ensemble: needs tritonclient, numpy and tqdm, nothing of the server.

`h3_client.client.H3Client` is the Python interface, `h3` the command line.
"""
