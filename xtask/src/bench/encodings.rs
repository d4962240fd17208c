//! `cargo xtask bench encodings [--path DIR]`: whole saves and loads of encoded chunks beside plain
//! ones, in a directory and in a bucket behind a link of 1 Gbit/s.

use anyhow::Result;

use crate::args::Args;
use crate::machine;
use crate::sh::Cmd;

/// The longest that it may take, with its build.
const LIMIT_S: u64 = 30 * 60;

pub fn run(args: &mut Args) -> Result<()> {
    let path = args.value("--path")?;
    args.end()?;
    println!("{}\nload average {:.1} before\n", machine::line(), machine::load());
    let cmd = Cmd::new("cargo bench --locked -p kvtier --features s3 --bench encodings");
    // The directory in which the program makes its own.
    let cmd = match path {
        Some(path) => cmd.env("KVTIER_BENCH_DIR", path),
        None => cmd,
    };
    cmd.limit_s(LIMIT_S).run()?;
    println!("\nload average {:.1} after", machine::load());
    Ok(())
}
