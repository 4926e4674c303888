from fakes import pb_utils

pb_utils.install()  # before any test module here imports the adapter
