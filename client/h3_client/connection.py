"""The options that say which server a command speaks to."""

import argparse

from h3_client.client import DEFAULT_URLS, H3Client, Protocol


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--url` and `--http`."""
    parser.add_argument(
        "--url",
        metavar="HOST:PORT",
        help="server address; default "
        + ", ".join(f"{url} ({protocol})" for protocol, url in DEFAULT_URLS.items()),
    )
    parser.add_argument("--http", action="store_true", help="speak HTTP instead of gRPC")


def connect(args: argparse.Namespace) -> H3Client:
    """The client that the options ask for; `http://` in front of the address means `--http`."""
    url: str | None = args.url
    protocol: Protocol = "http" if args.http else "grpc"
    if url is not None and url.startswith("http://"):
        url, protocol = url.removeprefix("http://").rstrip("/"), "http"
    return H3Client(url, protocol)
