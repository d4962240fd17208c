use std::fmt;

use anyhow::{Context, Result, bail};

use super::presets::Preset;
use crate::args::Args;

/// The requests of a cell of HEADs.
const HEADS: u64 = 20_000;
/// The HEADs in flight at once.
const HEADS_INFLIGHT: u64 = 64;
/// A cell of deletes: its objects, the size of each, and the requests in flight where each object
/// is a request of its own.
const DELETES: (u64, u64, u64) = (4000, 64 << 10, 32);
/// Plain and under TLS, each with HTTP/1.1 and with HTTP/2.
const SCHEMES: [&str; 4] = ["http", "https", "h2c", "h2"];
/// Those that speak HTTP/2 without having agreed on it under TLS.
const KNOW_HTTP2: [&str; 3] = ["kvtier", "object_store", "rusty-s3"];

/// Ours, with TLS records opened straight where they belong.
const DIRECT: &str = "kvtier-direct";
/// AWS's C client in Python, as LMCache uses it.
pub const AWSCRT: &str = "awscrt";
/// AWS's client for Python.
pub const BOTO3: &str = "boto3";
/// Our tier in a bucket.
pub const TIER: &str = "kvtier-tier";
/// LMCache's own S3 adapter.
pub const LMCACHE: &str = "lmcache";
/// AWS's C client in Rust.
pub const MOUNTPOINT: &str = "mountpoint-s3-client";

/// What to measure.
#[derive(Debug)]
pub struct Plan {
    ops: Vec<String>,
    sizes: Vec<u64>,
    inflight: Vec<u64>,
    schemes: Vec<String>,
    /// Only these clients; all when empty.
    pub peers: Vec<String>,
    pub with_awscrt: bool,
    pub with_boto3: bool,
    /// What is measured unless the command line says otherwise.
    pub preset: Preset,
    /// Server and clients run at real-time priority, so that other programs do not take their
    /// cores.
    pub is_realtime: bool,
    pub with_lmcache: bool,
    pub with_mountpoint: bool,
    pub turns: usize,
    pub gb: f64,
    pub json: Option<String>,
}

/// One operation on one size, with a number of requests in flight, with or without TLS.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub scheme: String,
    pub op: String,
    pub size: u64,
    pub inflight: u64,
    /// Operations in one turn.
    pub count: u64,
}

impl Cell {
    /// The size for people.
    pub fn bytes(&self) -> String {
        match self.size {
            size if size.is_multiple_of(1 << 20) => format!("{} MiB", size >> 20),
            size if size.is_multiple_of(1_000_000) => format!("{} MB", size / 1_000_000),
            size => format!("{} KiB", size >> 10),
        }
    }

    /// Whether a client can do it, and differently: the floor with TLS is that of tokio alone, that
    /// of HTTP/2 is what HTTP/1.1 costs, and only over TLS without HTTP/2 are there records to
    /// open directly.
    pub fn suits(&self, name: &str) -> bool {
        match self.scheme.as_str() {
            _ if self.op == "delete" => {
                matches!(name, "kvtier" | TIER | LMCACHE) && self.scheme == "http"
            }
            _ if matches!(name, TIER | LMCACHE) => self.scheme == "http" && self.op != "head",
            "http" => name != DIRECT,
            "https" => !matches!(name, "raw-blocking" | "raw-uring"),
            "h2c" => name.starts_with("raw-") || KNOW_HTTP2.contains(&name),
            _ => {
                !matches!(name, "raw-blocking" | "raw-uring" | AWSCRT | BOTO3 | MOUNTPOINT | DIRECT)
            }
        }
    }

    /// Whether it moves no bytes, so that operations count.
    pub fn is_bare(&self) -> bool {
        matches!(self.op.as_str(), "head" | "delete")
    }

    /// `http` or `https`.
    pub fn socket(&self) -> &'static str {
        if matches!(self.scheme.as_str(), "http" | "h2c") { "http" } else { "https" }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}, {} at once", self.scheme, self.op, self.bytes(), self.inflight)
    }
}

impl Plan {
    pub fn new(args: &mut Args) -> Result<Plan> {
        let with_lmcache = args.flag("--with-lmcache");
        let preset = Preset::find(args.value("--table")?.as_deref(), with_lmcache)?;
        let mut list = |name: &str| -> Result<Vec<String>> {
            let text = args.value(name)?.unwrap_or_else(|| preset.value(name).into());
            Ok(text.split(',').filter(|word| !word.is_empty()).map(String::from).collect())
        };
        let ops = known(list("--ops")?, &["get", "put", "head", "delete"])?;
        let schemes = known(list("--schemes")?, &SCHEMES)?;
        let sizes = list("--sizes")?;
        let inflight = list("--inflight")?;
        let peers = list("--peers")?;
        let mut with =
            |flag: &str, name: &str| args.flag(flag) || peers.iter().any(|peer| peer == name);
        let with_awscrt = with("--with-awscrt", AWSCRT);
        let with_mountpoint = with("--with-mountpoint", MOUNTPOINT);
        let with_boto3 = with("--with-boto3", BOTO3);
        let gb = args.value("--gb")?.unwrap_or_else(|| preset.value("--gb").into());
        let plan = Plan {
            ops,
            sizes: sizes.iter().map(|text| bytes(text)).collect::<Result<_>>()?,
            inflight: inflight.iter().map(|text| number(text)).collect::<Result<_>>()?,
            schemes,
            peers,
            with_awscrt,
            with_boto3,
            preset,
            is_realtime: args.flag("--realtime"),
            with_lmcache,
            with_mountpoint,
            turns: args.number("--turns")?.unwrap_or(5).max(1) as usize,
            gb: gb.parse().with_context(|| format!("--gb wants a number, not '{gb}'"))?,
            json: args.value("--json")?,
        };
        args.end()?;
        Ok(plan)
    }

    /// Whether only ours and the floor are wanted: then the hundreds of crates of the others need
    /// not be built.
    pub fn is_alone(&self) -> bool {
        let few = |name: &String| {
            matches!(name.as_str(), "kvtier" | DIRECT | TIER | AWSCRT | BOTO3 | LMCACHE)
                || name.starts_with("raw-")
        };
        !self.with_mountpoint && !self.peers.is_empty() && self.peers.iter().all(few)
    }

    /// Whether this client is to be measured.
    pub fn wants(&self, name: &str) -> bool {
        let asked = |peer: &String| peer == name;
        self.peers.is_empty()
            || self.peers.iter().any(asked)
            || (self.with_awscrt && name == AWSCRT)
            || (self.with_boto3 && name == BOTO3)
            || (self.with_mountpoint && name == MOUNTPOINT)
    }

    /// What one turn moves, for people.
    pub fn amount(&self) -> String {
        self.preset
            .count
            .map_or_else(|| format!("{} GB", self.gb), |count| format!("{count} operations"))
    }

    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for scheme in &self.schemes {
            for op in &self.ops {
                for (size, inflight) in self.loads(op) {
                    let moved = (self.gb * 1e9 / size as f64).ceil() as u64;
                    let count = match op.as_str() {
                        "head" => HEADS,
                        "delete" => DELETES.0,
                        _ => self.preset.count.unwrap_or(moved.max(2 * inflight)),
                    };
                    cells.push(Cell {
                        scheme: scheme.clone(),
                        op: op.clone(),
                        size,
                        inflight,
                        count,
                    });
                }
            }
        }
        cells
    }

    /// Sizes and requests in flight; a HEAD is the same for all sizes.
    fn loads(&self, op: &str) -> Vec<(u64, u64)> {
        if op == "delete" {
            return vec![(DELETES.1, DELETES.2)];
        }
        if op == "head" {
            return self.sizes.first().map(|size| (*size, HEADS_INFLIGHT)).into_iter().collect();
        }
        self.sizes
            .iter()
            .flat_map(|size| self.inflight.iter().map(|inflight| (*size, *inflight)))
            .collect()
    }
}

fn known(words: Vec<String>, known: &[&str]) -> Result<Vec<String>> {
    match words.iter().find(|word| !known.contains(&word.as_str())) {
        Some(word) => bail!("'{word}' is none of {}", known.join(", ")),
        None => Ok(words),
    }
}

/// A size; unlike chunks in files, objects may have any.
fn bytes(text: &str) -> Result<u64> {
    match text.strip_suffix("MB").map(number) {
        Some(millions) => Ok(1_000_000 * millions?),
        None => super::super::file::bytes(text),
    }
}

fn number(text: &str) -> Result<u64> {
    let number = text.parse().with_context(|| format!("'{text}' is no number"))?;
    if number == 0 { bail!("nothing in flight") } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_measured_once() {
        let plan =
            Plan::new(&mut Args::of(&["--sizes", "64KiB,1MiB", "--inflight", "1,8"])).unwrap();
        let heads = plan.cells().into_iter().filter(|cell| cell.op == "head").count();
        assert_eq!((plan.cells().len(), heads), (3 * (2 * 2 * 2 + 1), 3));
        assert!(
            !plan.is_alone()
                && Plan::new(&mut Args::of(&["--peers", "raw-tokio,kvtier"])).unwrap().is_alone()
        );
        assert!(!Plan::new(&mut Args::of(&["--peers", "kvtier,opendal"])).unwrap().is_alone());
        assert!(Plan::new(&mut Args::of(&["--ops", "post"])).is_err());
        assert!(Plan::new(&mut Args::of(&["--inflight", "0"])).is_err());
    }
    #[test]
    fn who_speaks_http2_is_measured_with_it() {
        let of = |scheme: &str| {
            let cell = Plan::new(&mut Args::of(&["--schemes", scheme])).unwrap().cells().remove(0);
            let names = ["raw-tokio", "raw-uring", "kvtier", DIRECT, "opendal", AWSCRT, MOUNTPOINT];
            (cell.socket(), names.into_iter().filter(|name| cell.suits(name)).collect::<Vec<_>>())
        };
        assert_eq!(of("http").1.len(), 6);
        assert_eq!(
            of("https"),
            ("https", vec!["raw-tokio", "kvtier", DIRECT, "opendal", AWSCRT, MOUNTPOINT])
        );
        assert_eq!(of("h2c"), ("http", vec!["raw-tokio", "raw-uring", "kvtier"]));
        assert_eq!(of("h2"), ("https", vec!["raw-tokio", "kvtier", "opendal"]));
        let plan = |flags: &[&str]| Plan::new(&mut Args::of(flags)).unwrap();
        assert!(plan(&["--with-awscrt"]).with_awscrt && !plan(&[]).with_awscrt);
        assert!(
            plan(&["--peers", "kvtier,awscrt"]).with_awscrt
                && plan(&["--peers", "kvtier,awscrt"]).is_alone()
        );
        assert!(!plan(&["--peers", "kvtier", "--with-mountpoint"]).is_alone());
    }

    #[test]
    fn a_table_names_what_it_measures() {
        let plan = |flags: &[&str]| Plan::new(&mut Args::of(flags)).unwrap();
        let large = plan(&["--table", "large-gets", "--realtime"]);
        assert_eq!(
            (large.cells().len(), large.is_realtime, large.amount().as_str()),
            (8, true, "1 GB")
        );
        assert!(large.wants("object_store") && !large.wants("opendal") && !large.is_alone());
        let schemes =
            |plan: &Plan| plan.cells().into_iter().map(|cell| cell.scheme).collect::<Vec<_>>();
        assert_eq!(schemes(&large).iter().filter(|scheme| *scheme == "http").count(), 4);
        let one = plan(&[
            "--table",
            "large-gets",
            "--schemes",
            "http",
            "--sizes",
            "4MiB",
            "--inflight",
            "2",
        ]);
        assert_eq!(
            (schemes(&one).as_slice(), one.cells()[0].size),
            (&["http".to_owned()][..], 4 << 20)
        );
        assert_eq!(plan(&["--table", "uploads"]).amount(), "100 operations");
        assert!(!plan(&[]).is_realtime);
    }

    #[test]
    fn beside_lmcache_chunks_move_over_plain_http() {
        let plan = |flags: &[&str]| Plan::new(&mut Args::of(flags)).unwrap();
        let beside = plan(&["--with-lmcache"]);
        assert!(
            beside.is_alone()
                && beside.wants(LMCACHE)
                && beside.wants(TIER)
                && !beside.wants("opendal")
        );
        let cells = beside.cells();
        assert_eq!(cells.len(), 7);
        assert!(cells.iter().all(|cell| cell.suits(LMCACHE) && cell.suits(TIER)));
        assert!(
            cells[6].is_bare()
                && !cells[6].suits("raw-tokio")
                && cells[..6].iter().all(|cell| cell.inflight == 8)
        );
        assert!(
            !plan(&["--schemes", "https"]).cells()[0].suits(TIER),
            "its floor is that of the client"
        );
    }
}
