//! Measures fleets on one bucket by their size, and writes `docs/SCALE.md`'s tables and pictures.
//!
//! - `scale one NODES CHUNKS [full | empty] [WARM_S MEASURED_S] [CHURN]` prints a run as a line of the record.
//!   Without any argument it is a small one.
//! - `scale memory CHUNKS` prints the memory of one node as a line of the record.
//! - `scale whole DOCS` runs everything into `DOCS/scale/runs.txt`, then renders. It takes about a quarter of an hour.
//! - `scale render DOCS` writes tables and pictures from that record.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod model;
mod record;
mod render;
mod svg;

use std::alloc::System;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kvtier_faultsim::scale::{ScaleSetup, measure, node_memory};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use self::record::{Memory, Record, Run};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The runs of `whole`: arguments of `one`.
const RUNS: [&str; 13] = [
    "1 10000 full 300 1200",
    "10 10000 full 300 1200",
    "100 10000 full 300 1200",
    "300 10000 full 300 600",
    "1000 10000 full 300 600",
    "30 50000 full 300 1210",
    "10 100000 full 300 1200",
    "100 100000 full 300 600",
    "10 1000000 full 300 1303",
    "1 10000 empty 0 600 0.002",
    "10 10000 empty 0 600 0.002",
    "100 10000 empty 0 600 0.002",
    "1000 10000 empty 0 600 0.002",
];
/// The numbers of chunks whose memory is measured.
const MEMORY_CHUNKS: [&str; 2] = ["1000000", "10000000"];

fn live_bytes() -> u64 {
    let stats = ALLOCATOR.stats();
    (stats.bytes_allocated as u64).wrapping_sub(stats.bytes_deallocated as u64)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // A small one, which takes a second.
        [] => one(&["3", "300", "full", "30", "60"]).map(|run| println!("{}", run.to_line())),
        ["one", rest @ ..] => one(rest).map(|run| println!("{}", run.to_line())),
        ["memory", chunks] => memory(chunks).map(|memory| println!("{}", memory.to_line())),
        ["whole", docs] => whole(Path::new(docs)),
        ["render", docs] => render::render(Path::new(docs)),
        _ => Err("which? one, memory, whole or render".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("scale: {why}");
            ExitCode::FAILURE
        }
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn one(words: &[&str]) -> Outcome<Run> {
    let number = |at: usize, default: &str| words.get(at).map_or(default, |word| *word).to_owned();
    let mut setup = ScaleSetup::new(number(0, "10").parse()?, number(1, "10000").parse()?);
    setup.is_full = number(2, "full") == "full";
    if !setup.is_full {
        // Nodes that start together fill it fastest.
        setup.start_within = Duration::from_secs(5);
    }
    setup.warm_up = Duration::from_secs(number(3, "300").parse()?);
    setup.measured = Duration::from_secs(number(4, "1200").parse()?);
    setup.churn = number(5, "0.0002").parse()?;
    setup.kills_evictor = setup.is_full && setup.nodes > 1;
    setup.live_bytes = Some(live_bytes);
    let began = Instant::now();
    let result = measure(&setup);
    eprintln!("{words:?} took {:.0} s", began.elapsed().as_secs_f64());
    Ok(Run::new(&setup, &result))
}

fn memory(chunks: &str) -> Outcome<Memory> {
    let chunks = chunks.parse()?;
    let bytes = node_memory(chunks, live_bytes).ok_or("the node did not read its snapshot")?;
    Ok(Memory { chunks, bytes })
}

fn whole(docs: &Path) -> Outcome<()> {
    let mut record = Record::default();
    for words in RUNS {
        record.runs.push(one(&words.split(' ').collect::<Vec<_>>())?);
    }
    for chunks in MEMORY_CHUNKS {
        record.memory.push(memory(chunks)?);
    }
    record.write(docs)?;
    render::render(docs)
}
