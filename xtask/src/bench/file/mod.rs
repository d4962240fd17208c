//! `cargo xtask bench file`: the file tier beside fio and, where they install, rivals, turn by turn
//! on the same directory.
//!
//! The disk of a shared machine is twice as fast in one minute as in the next. So all take turns
//! within seconds, what is printed are medians and their ratios, and CPU seconds a GB count more
//! than MB/s.

mod fio;
mod ours;
mod plan;
mod rivals;
mod sample;
mod table;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

pub use self::plan::bytes;
use self::plan::{Cell, Plan};
pub use self::rivals::{LMCACHE_DRIVER as RIVALS, MEASURE};
use self::sample::Samples;
use crate::args::Args;
use crate::sh::Cmd;

/// One that moves chunks, and how it measures itself in an empty directory.
pub struct Contender {
    name: String,
    run: Box<dyn Fn(&Cell, &Path) -> Result<Vec<sample::Sample>>>,
}

/// Measures and prints; with `--json FILE` every single sample is written there.
pub fn run(args: &mut Args) -> Result<()> {
    let plan = Plan::new(args)?;
    let mut contenders = vec![ours::contender()?, fio::contender()?];
    let (more, absent) = rivals::contenders(&plan);
    contenders.extend(more);
    absent.iter().for_each(|why| println!("not measured: {why}"));
    fs::create_dir_all(&plan.path)
        .with_context(|| format!("cannot make {}", plan.path.display()))?;
    // Where ext4 is asked to, it gives each turn's directory a region of the disk where nothing was
    // deleted lately.
    let _ = Cmd::new("chattr +T").arg(plan.path.to_string_lossy()).try_read();
    let mut samples = Samples::default();
    let measured = measure(&plan, &contenders, &mut samples);
    let _ = fs::remove_dir(&plan.path);
    measured?;
    let machine = machine(&plan.path);
    println!("\n{machine}; medians of {} turns of {} GB each", plan.pairs, plan.gb);
    absent.iter().for_each(|why| println!("not measured: {why}"));
    table::print(&plan, &samples);
    if let Some(file) = &plan.json {
        let all = json!({ "machine": machine, "pairs": plan.pairs, "gb": plan.gb, "absent": absent, "samples": samples.json() });
        fs::write(file, format!("{all:#}\n")).with_context(|| format!("cannot write {file}"))?;
    }
    Ok(())
}

/// All cells, in each all turns; who begins a turn changes.
fn measure(plan: &Plan, contenders: &[Contender], samples: &mut Samples) -> Result<()> {
    for cell in plan.cells() {
        for turn in 0..plan.pairs {
            for place in 0..contenders.len() {
                let contender = &contenders[(turn as usize + place) % contenders.len()];
                // A name of its own for each: ext4 places such a directory by its name, and where
                // files were deleted within the last minute it searches long for
                // the place of a new one.
                let dir = plan.path.join(format!("{}-{}-{turn}-{place}", cell.size, cell.inflight));
                fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
                let measured = (contender.run)(&cell, &dir);
                fs::remove_dir_all(&dir)
                    .with_context(|| format!("cannot remove {}", dir.display()))?;
                let measured = measured.with_context(|| format!("{} at {cell}", contender.name))?;
                samples.add(&cell, &contender.name, measured);
            }
        }
        println!("{cell}: done");
    }
    Ok(())
}

/// The machine and the medium in a line.
fn machine(path: &Path) -> String {
    let parent = path.parent().unwrap_or(path).to_string_lossy();
    let medium =
        Cmd::new("findmnt -n -o FSTYPE,SOURCE --target").arg(parent).read().unwrap_or_default();
    format!(
        "{}, {}",
        crate::machine::line(),
        medium.split_whitespace().collect::<Vec<_>>().join(" on ")
    )
}
