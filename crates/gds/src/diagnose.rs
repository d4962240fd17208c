//! What a machine and a directory can do for GPUs, step by step, for operators.

use std::path::Path;

use kvtier_mem::cuda::Gpu;

use crate::cufile::{Driver, file_system, machine, probe, reach};
use crate::{CufileMode, GdsConfig};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiagnosticStep {
    /// What.
    pub name: &'static str,
    /// What it is, or why it is not; with the fix.
    pub detail: String,
    /// Whether it is as loads straight to the GPU need it.
    pub passed: bool,
}

/// Looks at everything that decides whether loads into `ordinal`'s memory from the directory of
/// `config` go straight there, and stops at the first thing that decides against it. The last one
/// found is the outcome. The directory must exist; nothing stays in it.
pub fn diagnose(config: &GdsConfig, ordinal: u32) -> Vec<DiagnosticStep> {
    let mut list = List(Vec::new());
    let outcome = look(config, ordinal, &mut list);
    let pinned = "loads go through pinned memory, which works everywhere";
    let (detail, passed) = match outcome {
        Some(()) => ("loads go straight to the GPU by cuFile".to_owned(), true),
        None if list.0.len() == 1 && !list.0[0].passed => ("host memory only".to_owned(), false),
        None if config.cufile == CufileMode::Off => {
            (format!("{pinned}; cuFile is switched off"), true)
        }
        None => (pinned.to_owned(), false),
    };
    list.0.push(DiagnosticStep { name: "outcome", detail, passed });
    list.0
}

struct List(Vec<DiagnosticStep>);

impl List {
    /// Notes a step; `None` when it went wrong.
    fn note<T>(&mut self, name: &'static str, step: Result<(T, String), String>) -> Option<T> {
        let (value, detail) = match step {
            Ok((value, detail)) => (Some(value), detail),
            Err(why) => (None, why),
        };
        self.0.push(DiagnosticStep { name, detail, passed: value.is_some() });
        value
    }
}

fn look(config: &GdsConfig, ordinal: u32, list: &mut List) -> Option<()> {
    let said = |e: kvtier_mem::Error| e.to_string();
    let gpu = list.note(
        "GPU",
        Gpu::open(ordinal).map_err(said).and_then(|gpu| {
            let name = format!("{ordinal}: {}", gpu.name().map_err(said)?);
            Ok((gpu, name))
        }),
    )?;
    if config.cufile == CufileMode::Off {
        return None;
    }
    let fine = |found: &str| ((), found.to_owned());
    list.note(
        "machine",
        machine(&config.system_root).map(|()| fine("has what cuFile looks at first")),
    )?;
    let dir: &Path = &config.disk.path;
    list.note(
        "file system",
        file_system(&config.system_root, dir)
            .map(|()| fine("not one that cuFile is known to refuse")),
    )?;
    let driver = Driver::open(config.cufile_library.as_deref(), &gpu, config.open_timeout);
    let driver = list.note("cuFile", driver.map(|driver| (driver, driver.describe())))?;
    let direct = if driver.is_direct() || config.compat {
        Ok(fine(if driver.is_direct() {
            "yes"
        } else {
            "no, and used all the same, as configured"
        }))
    } else {
        Err("no: in compatibility mode it is slower than pinned memory; load nvidia-fs, or enable PCI P2PDMA".into())
    };
    list.note("direct", direct)?;
    let judged = reach(&config.system_root, dir, driver.targets()).judge(config.compat);
    let probed = judged
        .and_then(|found| probe(driver, &gpu, dir, config.open_timeout).map(|()| ((), found)));
    list.note("probe", probed)
}
