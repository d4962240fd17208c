//! `cargo xtask bench`: all criterion benchmarks of the workspace, or one tier beside its rivals.

mod adapter_plan;
mod adapter_samples;
mod cachegen;
mod encodings;
mod file;
mod kv;
mod lmcache;
mod s3;
mod sglang;
mod test_s3_server;
mod vllm;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::sh::Cmd;
use crate::workspace;

/// The longest that one benchmark program may take.
const LIMIT_S: u64 = 60 * 60;

/// `--smoke` runs each benchmark once, without optimising: it proves that they work, not how fast
/// anything is.
pub fn run(args: &mut Args) -> Result<()> {
    let smoke = args.flag("--smoke");
    match args.word().as_deref() {
        Some("cachegen") => return cachegen::run(args),
        Some("encodings") => return encodings::run(args),
        Some("file") => return file::run(args),
        Some("kv") => return kv::run(args),
        Some("lmcache") => return lmcache::run(args),
        Some("s3") => return s3::run(args),
        Some("sglang") => return sglang::run(args),
        Some("vllm") => return vllm::run(args),
        Some(other) => {
            bail!(
                "no benchmark '{other}'; there are: cachegen, encodings, file, kv, lmcache, s3, sglang, vllm, or none for all criterion programs"
            )
        }
        None => {}
    }
    args.end()?;
    let mut count = 0;
    for package in &workspace::read()? {
        for bench in package.targets_of("bench") {
            let cmd = Cmd::new("cargo bench --locked -p")
                .arg(&package.name)
                .args(["--bench", &bench.name]);
            let features = bench.required_features.join(",");
            let cmd = if features.is_empty() { cmd } else { cmd.args(["--features", &features]) };
            let cmd = if smoke { cmd.args(["--profile", "dev", "--", "--test"]) } else { cmd };
            cmd.limit_s(LIMIT_S).run()?;
            count += 1;
        }
    }
    match count {
        0 => bail!("the workspace has no benchmarks"),
        count => {
            println!("{count} benchmark programs ran");
            Ok(())
        }
    }
}
