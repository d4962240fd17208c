//! Diagnoses for operators whether a machine and a directory support direct GPU loads.

use std::path::Path;

use kvtier_mem::cuda::Gpu;

use crate::cufile::{Driver, check_direct, check_file_system, check_machine, probe, storage_of};
use crate::{CufileMode, GdsConfig};

/// One step of the diagnosis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiagnosticStep {
    /// What was checked.
    pub name: &'static str,
    /// The result; for a failed step the reason and the remedy.
    pub detail: String,
    /// Whether direct loads are possible as far as this step is concerned.
    pub passed: bool,
}

/// Checks whether loads from the directory of `config` go straight into the memory of GPU `ordinal`.
///
/// The checks stop at the first one that fails. The last step is the outcome. The directory must
/// exist; the files of the probe are removed.
pub fn diagnose(config: &GdsConfig, ordinal: u32) -> Vec<DiagnosticStep> {
    let mut steps = Steps(Vec::new());
    let outcome = check_all(config, ordinal, &mut steps);
    let pinned = "loads go through pinned memory, which works everywhere";
    let (detail, passed) = match outcome {
        Some(()) => ("loads go straight to the GPU by cuFile".to_owned(), true),
        None if steps.0.len() == 1 && !steps.0[0].passed => ("host memory only".to_owned(), false),
        None if config.cufile == CufileMode::Off => {
            (format!("{pinned}; cuFile is switched off"), true)
        }
        None => (pinned.to_owned(), false),
    };
    steps.0.push(DiagnosticStep { name: "outcome", detail, passed });
    steps.0
}

struct Steps(Vec<DiagnosticStep>);

impl Steps {
    /// Records a step; `None` if it failed.
    fn record<T>(&mut self, name: &'static str, step: Result<(T, String), String>) -> Option<T> {
        let (value, detail) = match step {
            Ok((value, detail)) => (Some(value), detail),
            Err(why) => (None, why),
        };
        self.0.push(DiagnosticStep { name, detail, passed: value.is_some() });
        value
    }
}

// The same checks in the same order as `CufileLoader::new`, but each is reported.
fn check_all(config: &GdsConfig, ordinal: u32, steps: &mut Steps) -> Option<()> {
    let text = |e: kvtier_mem::Error| e.to_string();
    let gpu = steps.record(
        "GPU",
        Gpu::open(ordinal).map_err(text).and_then(|gpu| {
            let name = format!("{ordinal}: {}", gpu.name().map_err(text)?);
            Ok((gpu, name))
        }),
    )?;
    if config.cufile == CufileMode::Off {
        return None;
    }
    let passed = |detail: &str| ((), detail.to_owned());
    steps.record(
        "machine",
        check_machine(&config.system_root).map(|()| passed("has what cuFile checks first")),
    )?;
    let dir: &Path = &config.disk.path;
    steps.record(
        "file system",
        check_file_system(&config.system_root, dir)
            .map(|()| passed("not one that cuFile is known to refuse")),
    )?;
    let driver = Driver::open(config.cufile_library.as_deref(), &gpu, config.open_timeout);
    let driver = steps.record("cuFile", driver.map(|driver| (driver, driver.describe())))?;
    let direct =
        check_direct(driver, config.compat).map_err(|why| format!("no: {why}")).map(|()| {
            passed(if driver.is_direct() {
                "yes"
            } else {
                "no, and used all the same, as configured"
            })
        });
    steps.record("direct", direct)?;
    let judged = storage_of(&config.system_root, dir, driver.targets()).judge(config.compat);
    let probed = judged
        .and_then(|found| probe(driver, &gpu, dir, config.open_timeout).map(|()| ((), found)));
    steps.record("probe", probed)
}
