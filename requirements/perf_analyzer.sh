#!/usr/bin/env bash
# Installs the real perf_analyzer into .perf_analyzer: the binary lies in the wheel
# tritonclient 2.51.0 (later ones lack it) and needs libb64 of the system's packages.
# The wheel goes into an environment of its own, because the models use a newer client.
set -eu -o pipefail
cd "$(dirname "$0")/.."
folder=.perf_analyzer
[ -x "$folder/run" ] && exit 0

rm -rf "$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-deps tritonclient==2.51.0 nvidia-cuda-runtime-cu12==12.9.79
site=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

libraries="$PWD/$folder/lib"
mkdir -p "$libraries"
if ! ldconfig -p | grep -q 'libb64\.so\.0d'; then
  # No root needed: the package is unpacked, not installed.
  (cd "$folder" && apt-get download --quiet libb64-0d >/dev/null && dpkg -x libb64-0d_*.deb deb)
  find "$folder/deb" -name 'libb64.so*' -exec cp -P {} "$libraries" \;
fi

cat >"$folder/run.part" <<SCRIPT
#!/usr/bin/env bash
export LD_LIBRARY_PATH="$libraries:$site/nvidia/cuda_runtime/lib"
exec "$PWD/$folder/venv/bin/perf_analyzer" "\$@"
SCRIPT
chmod +x "$folder/run.part"
"$folder/run.part" --version
mv "$folder/run.part" "$folder/run"
