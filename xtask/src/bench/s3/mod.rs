//! `cargo xtask bench s3`: the S3 client beside bare sockets and rivals, turn by turn against one
//! server in memory.
//!
//! Server and clients are pinned to different cores. What counts is the client's CPU time a GB:
//! MB/s also say how fast the server's core is.

mod awscrt;
mod boto3;
mod cells;
mod contest;
mod lmcache;
mod presets;
mod results;
mod server;
mod tables;

use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::json;

use self::cells::Plan;
use self::contest::Contest;
use self::results::Results;
pub use self::server::BenchServer;
use crate::args::Args;
use crate::machine;

/// Measures and prints; with `--json FILE` every single sample is written there.
pub fn run(args: &mut Args) -> Result<()> {
    let plan = Plan::new(args)?;
    if machine::cores() < 2 {
        bail!("server and client need a core each");
    }
    let contest = Contest::start(&plan)?;
    let before = machine::load();
    let mut results = Results::default();
    for cell in plan.cells() {
        for turn in 0..plan.turns {
            // Who begins a turn changes.
            let names: Vec<&String> =
                contest.names.iter().filter(|name| cell.suits(name)).collect();
            for place in 0..names.len() {
                let name = names[(turn + place) % names.len()];
                let sample =
                    contest.measure(&cell, name).with_context(|| format!("{name} at {cell}"))?;
                results.add(&cell, name, sample);
            }
        }
        println!("{cell}: done");
        // After each cell: a run that is cut short has not run for nothing.
        save(&plan, &contest, &results, before)?;
    }
    let (machine, load) = (machine::line(), [before, machine::load()]);
    let priority = if plan.is_realtime { "; at real-time priority" } else { "" };
    println!(
        "\n{machine}; load average {:.1} before, {:.1} after{priority}; medians of {} turns of {}",
        load[0],
        load[1],
        plan.turns,
        plan.amount()
    );
    contest.absent.iter().for_each(|why| println!("not measured: {why}"));
    if plan.preset.is_uploads() {
        tables::uploads::print(&plan, &contest.names, &results);
        return Ok(());
    }
    tables::clients::print(&plan, &contest.names, &results);
    tables::rivals::print(&plan, &contest.names, &results);
    tables::tier::print(&plan, &results);
    Ok(())
}

fn save(plan: &Plan, contest: &Contest, results: &Results, load_before: f64) -> Result<()> {
    let Some(file) = &plan.json else { return Ok(()) };
    let all = json!({
        "machine": machine::line(), "load_average": [load_before, machine::load()], "turns": plan.turns, "gb": plan.gb,
        "realtime": plan.is_realtime,
        "absent": contest.absent, "samples": results.json(),
    });
    fs::write(file, format!("{all:#}\n")).with_context(|| format!("cannot write {file}"))
}
