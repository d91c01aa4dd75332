set -u
export PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=/tmp/tc PYTHONPATH=$PYTHONPATH:$PWD TRITON_DEFAULT_FP_FUSION=1
nvidia-smi --query-gpu=name,power.limit,driver_version --format=csv,noheader
echo "== tests"; date +%T
KERNELS=q4_k_matmul,lora,attention,causal_attention timeout 100 python3 -m pytest -q -n 14 -p no:cacheprovider tests/gpu/test_kernels.py -k "(unpack_first and (every_choice or check)) or (lora.persistent and (bits or check or real)) or (ping_pong and strides)" 2>&1 | grep -v Warn | tail -45
[ -f tests/gpu/test_ops.py ] && timeout 150 python3 -m pytest -q -n 6 -p no:cacheprovider tests/gpu/test_ops.py 2>&1 | tail -30
[ -f benchmarks/ops_overhead.py ] && timeout 60 python3 benchmarks/ops_overhead.py 2>&1 | tail -30
echo "== bench"; date +%T
timeout 60 python3 benchmarks/kernels.py --only "lora 512" "lora 8192" "q4_k_matmul 512" --seconds 50 --final-s 1.2 --out $OUT/kernels.json 2>&1 | tail -12
echo "== sweeps"; date +%T
sw() { timeout $1 python3 -m workbench.sweep full --kernel $2 --impl $3 --sizes $4 --dtype $5 --budget $6 --database sqlite:////tmp/w.db --out $OUT/../res --json $OUT/$2-$3-$7.json --quiet 2>&1 | tail -4; }
sw 70 lora persistent M=512,N=4096,K=4096,r=16 bf16 55s r16
sw 40 attention ping_pong B=2,S=8192,Hkv=16,G=1,D=64,T=8192 bf16 30s d64
sw 60 q4_k_matmul unpack_first M=512,N=14336,K=4096 fp16 45s m512
date +%T
