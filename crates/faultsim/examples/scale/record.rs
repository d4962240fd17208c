//! The record of runs, as lines of text: what tables and pictures are made of.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kvtier_faultsim::scale::{RequestArea, RequestCounts, RequestPrice, ScaleResult, ScaleSetup};

use crate::Outcome;

const AREAS: [(RequestArea, &str); 5] = [
    (RequestArea::Chunks, "chunks"),
    (RequestArea::Journals, "journals"),
    (RequestArea::Leases, "leases"),
    (RequestArea::Snapshots, "snapshots"),
    (RequestArea::Other, "other"),
];
const PRICES: [(RequestPrice, &str); 4] = [
    (RequestPrice::Put, "put"),
    (RequestPrice::List, "list"),
    (RequestPrice::Get, "get"),
    (RequestPrice::Delete, "delete"),
];

/// A run: what was simulated and what it showed, by name.
#[derive(Clone, Default, Debug)]
pub struct Run {
    values: BTreeMap<String, f64>,
}

/// The memory of one node.
#[derive(Clone, Copy, Default, Debug)]
pub struct Memory {
    pub chunks: u64,
    pub bytes: u64,
}

/// All runs.
#[derive(Clone, Default, Debug)]
pub struct Record {
    pub runs: Vec<Run>,
    pub memory: Vec<Memory>,
}

impl Run {
    pub fn new(setup: &ScaleSetup, result: &ScaleResult) -> Self {
        let mut run = Run::default();
        let mut set = |name: &str, value: f64| {
            run.values.insert(name.to_owned(), value);
        };
        set("nodes", setup.nodes as f64);
        set("chunks", setup.chunks as f64);
        set("full", f64::from(u8::from(setup.is_full)));
        set("churn", setup.churn);
        set("measured_s", setup.measured.as_secs_f64());
        set("stored", result.stored as f64);
        set("shed", result.shed as f64);
        set("most_of_cap", result.most_of_cap);
        for (name, lag) in [("saves", result.save_lag_s), ("deletes", result.delete_lag_s)] {
            set(&format!("{name}.median_s"), lag.median_s);
            set(&format!("{name}.p99_s"), lag.p99_s);
            set(&format!("{name}.learned"), lag.learned);
        }
        set("node_bytes", result.node_bytes.unwrap_or_default() as f64);
        set("takeover_s", result.takeover_s.unwrap_or(-1.0));
        let mut counts = |when: &str, counts: &RequestCounts| {
            for (area, area_name) in AREAS {
                for (price, price_name) in PRICES {
                    let count = counts.of(price, area) as f64;
                    set(&format!("{when}.{area_name}.{price_name}"), count);
                }
            }
        };
        counts("start", &result.starting);
        counts("steady", &result.steady);
        run
    }

    /// A value; 0 if it has none of that name.
    pub fn get(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or_default()
    }

    pub fn nodes(&self) -> u64 {
        self.get("nodes") as u64
    }

    pub fn chunks(&self) -> u64 {
        self.get("chunks") as u64
    }

    pub fn is_full(&self) -> bool {
        self.get("full") > 0.0
    }

    /// Requests of the whole fleet in a day.
    pub fn per_day(&self, area: &str, price: &str) -> f64 {
        self.get(&format!("steady.{area}.{price}")) * 86_400.0 / self.get("measured_s")
    }

    pub fn to_line(&self) -> String {
        let words = self.values.iter().map(|(name, value)| format!("{name}={value}"));
        format!("run {}", words.collect::<Vec<_>>().join(" "))
    }

    fn from_line(line: &str) -> Option<Self> {
        let pair = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let values = line.split(' ').map(pair).collect::<Option<_>>()?;
        Some(Run { values })
    }
}

impl Memory {
    pub fn to_line(self) -> String {
        format!("memory {} {}", self.chunks, self.bytes)
    }

    fn from_line(line: &str) -> Option<Self> {
        let (chunks, bytes) = line.split_once(' ')?;
        Some(Memory { chunks: chunks.parse().ok()?, bytes: bytes.parse().ok()? })
    }
}

impl Record {
    /// The record in this directory of documents.
    pub fn read(docs: &Path) -> Outcome<Self> {
        let mut record = Record::default();
        for line in fs::read_to_string(docs.join("scale/runs.txt"))?.lines() {
            let known = match line.split_once(' ') {
                Some(("run", rest)) => Run::from_line(rest).map(|run| record.runs.push(run)),
                Some(("memory", rest)) => {
                    Memory::from_line(rest).map(|memory| record.memory.push(memory))
                }
                _ => None,
            };
            known.ok_or_else(|| format!("no run: {line}"))?;
        }
        Ok(record)
    }

    pub fn write(&self, docs: &Path) -> Outcome<()> {
        fs::create_dir_all(docs.join("scale"))?;
        let runs = self.runs.iter().map(Run::to_line);
        let memory = self.memory.iter().map(|memory| memory.to_line());
        let lines: Vec<String> = runs.chain(memory).collect();
        Ok(fs::write(docs.join("scale/runs.txt"), lines.join("\n") + "\n")?)
    }

    /// The run of this number of nodes and of chunks.
    pub fn run(&self, nodes: u64, chunks: u64, is_full: bool) -> Option<&Run> {
        let is_it =
            |run: &&Run| run.nodes() == nodes && run.chunks() == chunks && run.is_full() == is_full;
        self.runs.iter().find(is_it)
    }
}
