use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::sh::root;

/// Chunks at once.
const INFLIGHT: [u64; 2] = [1, 8];

/// What to measure.
#[derive(Debug)]
pub struct Plan {
    /// A directory of ours alone, on the medium to be measured.
    pub path: PathBuf,
    pub sizes: Vec<u64>,
    pub pairs: u64,
    pub gb: f64,
    pub json: Option<String>,
    pub with_lmcache: bool,
    pub with_nixl: bool,
}

/// One size of chunks, and how many of them are under way at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub size: u64,
    pub inflight: u64,
    /// Chunks moved in one turn.
    pub chunks: u64,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB, {} at once", self.size as f64 / 1048576.0, self.inflight)
    }
}

impl Plan {
    pub fn new(args: &mut Args) -> Result<Plan> {
        let base = args.value("--path")?.map_or_else(|| root().join("target"), PathBuf::from);
        let sizes = args.value("--sizes")?.unwrap_or_else(|| "1MiB,4MiB,10MiB,32MiB".into());
        let gb = args.value("--gb")?.unwrap_or_else(|| "1".into());
        let plan = Plan {
            path: base.join(format!("kvtier-bench-file.{}", std::process::id())),
            sizes: sizes.split(',').map(bytes).collect::<Result<_>>()?,
            pairs: args.number("--pairs")?.unwrap_or(9).max(1),
            gb: gb.parse().with_context(|| format!("--gb wants a number, not '{gb}'"))?,
            json: args.value("--json")?,
            with_lmcache: args.flag("--with-lmcache"),
            with_nixl: args.flag("--with-nixl"),
        };
        args.end()?;
        Ok(plan)
    }

    pub fn cells(&self) -> Vec<Cell> {
        let cells = self.sizes.iter().flat_map(|size| INFLIGHT.map(|inflight| (*size, inflight)));
        let chunks =
            |size: u64, inflight| ((self.gb * 1e9 / size as f64).ceil() as u64).max(inflight);
        cells
            .map(|(size, inflight)| Cell { size, inflight, chunks: chunks(size, inflight) })
            .collect()
    }
}

/// `64KiB`, `4MiB`, or a plain number of bytes; multiples of 4 KiB, as direct I/O wants them.
pub fn bytes(text: &str) -> Result<u64> {
    let (number, unit) = match text.strip_suffix("iB") {
        None => (text, 1),
        Some(rest) if rest.ends_with('K') => (&rest[..rest.len() - 1], 1 << 10),
        Some(rest) if rest.ends_with('M') => (&rest[..rest.len() - 1], 1 << 20),
        Some(_) => bail!("'{text}' is no size; write for example 4MiB"),
    };
    let number: u64 =
        number.parse().with_context(|| format!("'{text}' is no size; write for example 4MiB"))?;
    match number * unit {
        0 => bail!("'{text}' is no size of a chunk"),
        bytes if !bytes.is_multiple_of(4096) => bail!("'{text}' is not a multiple of 4 KiB"),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_odd_ones_refused() {
        assert_eq!(bytes("64KiB").unwrap(), 65536);
        assert_eq!(bytes("10MiB").unwrap(), 10 << 20);
        assert_eq!(bytes("8192").unwrap(), 8192);
        for odd in ["0", "4097", "4MB", "iB", "lots", "4GiB"] {
            assert!(bytes(odd).is_err(), "{odd}");
        }
    }
}
