set -u
export PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=/tmp/tc PYTHONPATH=$PYTHONPATH:$PWD TRITON_DEFAULT_FP_FUSION=1
nvidia-smi --query-gpu=name,power.limit,driver_version --format=csv,noheader
echo "== check sizes"; date +%T
KERNELS=attention,causal_attention timeout 100 python3 -m pytest -q -n 8 -p no:cacheprovider tests/gpu/test_kernels.py -k "ping_pong and right_at_check" 2>&1 | tail -6
rc=$?
echo "== bench"; date +%T
timeout 230 python3 benchmarks/kernels.py --only attention lora q4 --seconds 200 --final-s 1.2 --out $OUT/kernels.json 2>&1 | tail -60
echo "== all ping_pong"; date +%T
KERNELS=attention,causal_attention timeout 120 python3 -m pytest -q -n 10 -p no:cacheprovider tests/gpu/test_kernels.py -k "ping_pong and not right_at_check" 2>&1 | tail -12
echo "== unpack_first, lora"; date +%T
KERNELS=q4_k_matmul,lora timeout 110 python3 -m pytest -q -n 12 -p no:cacheprovider tests/gpu/test_kernels.py -k "unpack_first or lora.persistent" 2>&1 | tail -12
date +%T
