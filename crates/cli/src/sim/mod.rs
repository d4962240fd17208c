//! `kvtier sim`: hit ratios of policies over a trace, without moving a byte.

mod blocks;
mod cache;
mod caller_hints;
mod optimum;
mod plot;
mod report;

use std::path::PathBuf;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use kvtier::evict::PolicyKind;

use self::blocks::Blocks;
use self::cache::{Hits, SimTier};
use self::caller_hints::{Given, Hints};
use crate::BadInput;

/// Simulates eviction policies over a request trace: hit ratios by size of the cache, and the
/// optimum.
#[derive(clap::Args, Clone)]
pub struct SimArgs {
    /// The trace: JSON lines with `hash_ids`, or the binary form (.bin, .bin.zst); - for standard
    /// input.
    trace: PathBuf,
    /// `all`, or names separated by commas: default, default-unchained, lru, ..., optimum.
    #[arg(long, default_value = "all")]
    policy: String,
    /// Sizes of the cache, separated by commas: shares of the trace's distinct blocks (5%), or
    /// numbers of blocks.
    #[arg(long, default_value = "1%,5%,10%,20%,50%")]
    sizes: String,
    /// A full cache goes down to this share of its size; 1: every save evicts just what it needs.
    #[arg(long, default_value_t = 1.0)]
    mark: f64,
    /// The most of its size that a full cache gives up at a time.
    #[arg(long, default_value_t = 0.005)]
    batch: f64,
    /// Which requests come with a hint of when their conversation goes on.
    #[arg(long, value_enum, default_value_t = Given::None)]
    hints: Given,
    /// Seed of what is random in hints.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulate only the first N requests.
    #[arg(long)]
    requests: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Draw hit ratio by size, one line a policy, into this SVG file.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimRow {
    Policy { kind: PolicyKind, chain_known: bool },
    Optimum,
}

/// The default policy, without the chains.
const UNCHAINED: &str = "default-unchained";
const OPTIMUM: &str = "optimum";

impl SimRow {
    fn name(self) -> &'static str {
        match self {
            SimRow::Policy { kind: PolicyKind::Default, chain_known: false } => UNCHAINED,
            SimRow::Policy { kind, .. } => kind.name(),
            SimRow::Optimum => OPTIMUM,
        }
    }
}

/// A cache size as it was asked for, and in blocks.
#[derive(Clone, Debug)]
struct CacheSize {
    text: String,
    blocks: usize,
}

/// What one policy hit at one size.
#[derive(Clone, Debug)]
struct Cell {
    row: SimRow,
    size: CacheSize,
    hits: Hits,
}

/// Simulates and reports.
pub fn run(args: &SimArgs) -> Result<()> {
    for (flag, share) in [("--mark", args.mark), ("--batch", args.batch)] {
        if !(share > 0.0 && share <= 1.0) {
            return Err(BadInput(format!(
                "{flag} {share} is no share: set it above 0 and at most 1"
            ))
            .into());
        }
    }
    if let Some(path) = &args.plot
        && !path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"))
    {
        return Err(BadInput(format!(
            "--plot {}: only SVG is drawn; name a file that ends in .svg",
            path.display()
        ))
        .into());
    }
    let rows = rows(&args.policy)?;
    if args.requests == Some(0) {
        return Err(BadInput(
            "--requests 0 simulates nothing; set it to 1 or more, or leave it out".into(),
        )
        .into());
    }
    // What can be checked without the trace is checked before: a trace can take long to read.
    let trace = crate::trace::read(&args.trace, args.requests.unwrap_or(usize::MAX))?;
    let blocks = Blocks::of(&trace);
    let sizes = sizes(&args.sizes, blocks.distinct())?;
    crate::interrupt::watch()?;
    let cells = simulate(args, &blocks, &rows, &sizes)?;
    report::print(&cells, &blocks, &trace, args.json)?;
    // After the table, which is not lost where the picture cannot be written.
    if let Some(path) = &args.plot {
        let is_input = args.trace.as_os_str() == "-";
        let title = if is_input {
            "standard input".into()
        } else {
            args.trace.file_name().unwrap_or_default().to_string_lossy()
        };
        std::fs::write(path, plot::svg(&title, &cells))
            .with_context(|| format!("cannot write the plot to {}", path.display()))?;
    }
    Ok(())
}

fn simulate(
    args: &SimArgs,
    blocks: &Blocks,
    rows: &[SimRow],
    sizes: &[CacheSize],
) -> Result<Vec<Cell>> {
    let hints = Hints::new(blocks, args.hints, args.seed);
    let bar = ProgressBar::new((rows.len() * sizes.len()) as u64);
    bar.set_style(ProgressStyle::with_template(
        "{bar:30} {pos}/{len} cells, {msg} (about {eta} left)",
    )?);
    let mut cells = Vec::new();
    for row in rows {
        for size in sizes {
            // A cell can take minutes; the table of the finished cells would be wrong without the
            // rest.
            if crate::interrupt::asked() {
                return Err(crate::interrupt::Interrupted.into());
            }
            bar.set_message(format!("{} at {}", row.name(), size.text));
            let hits = match *row {
                SimRow::Optimum => optimum::run(blocks, size.blocks),
                SimRow::Policy { kind, chain_known } => {
                    // Shares of a small cache may round to nothing.
                    let of = |share: f64| ((size.blocks as f64 * share) as usize).max(1);
                    let tier = SimTier {
                        capacity: size.blocks,
                        mark: of(args.mark),
                        batch: of(args.batch),
                        chain_known,
                    };
                    cache::run(blocks, kind, tier, &hints)
                }
            };
            cells.push(Cell { row: *row, size: size.clone(), hits });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(cells)
}

fn rows(text: &str) -> Result<Vec<SimRow>, BadInput> {
    // The default policy once more without knowledge of chains, which shows what that knowledge is
    // worth.
    let unchained = SimRow::Policy { kind: PolicyKind::Default, chain_known: false };
    if text.eq_ignore_ascii_case("all") {
        let mut rows =
            vec![SimRow::Policy { kind: PolicyKind::Default, chain_known: true }, unchained];
        let others = PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::Default);
        rows.extend(others.map(|kind| SimRow::Policy { kind, chain_known: true }));
        rows.push(SimRow::Optimum);
        return Ok(rows);
    }
    let row = |name: &str| match name.trim() {
        UNCHAINED => Ok(unchained),
        OPTIMUM => Ok(SimRow::Optimum),
        name => {
            let kind = name
                .parse()
                .map_err(|e| BadInput(format!("--policy: {e} {UNCHAINED} {OPTIMUM} all")))?;
            Ok(SimRow::Policy { kind, chain_known: true })
        }
    };
    text.split(',').map(row).collect()
}

fn sizes(text: &str, distinct: usize) -> Result<Vec<CacheSize>, BadInput> {
    let size = |text: &str| {
        let text = text.trim();
        let blocks = match text.strip_suffix('%') {
            // A share of a short trace is a block at least.
            Some(share) => {
                let share = share.trim().parse::<f64>().ok().filter(|share| *share > 0.0);
                share.map(|share| ((distinct as f64 * share / 100.0) as usize).max(1))
            }
            None => text.parse().ok(),
        };
        // Blocks are numbered with 32 bits in the simulation.
        let blocks = blocks.filter(|blocks| (1..=u32::MAX as usize / 2).contains(blocks));
        let blocks = blocks.ok_or_else(|| {
            BadInput(format!(
                "--sizes {text:?} is no size of one block or more of {distinct}; write for example 5% or 4096"
            ))
        })?;
        Ok(CacheSize { text: text.into(), blocks })
    };
    text.split(',').map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_sizes_are_read_as_asked() {
        let names = |text| rows(text).unwrap().into_iter().map(SimRow::name).collect::<Vec<_>>();
        assert_eq!(
            names("lru, optimum,default-unchained"),
            ["lru", "optimum", "default-unchained"]
        );
        assert_eq!(names("all").len(), PolicyKind::ALL.len() + 2);
        assert!(rows("lru,lur").unwrap_err().0.contains("lur"));
        let blocks = |text| {
            sizes(text, 1000).map(|sizes| sizes.iter().map(|s| s.blocks).collect::<Vec<_>>())
        };
        assert_eq!(blocks("0.5%, 50%,7").unwrap(), [5, 500, 7]);
        assert_eq!(blocks("0.01%").unwrap(), [1], "a share is a block at least");
        for bad in ["", "0%", "x", "-3%", "nan%"] {
            assert!(blocks(bad).is_err(), "{bad}");
        }
    }
}
