//! `kvtier doctor gds` and `kvtier bench gds`, without a GPU and over the stand-ins.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use kvtier_fakegpu::{Fakes, Report};

const KVTIER: &str = env!("CARGO_BIN_EXE_kvtier");

/// What the command says over these stand-ins; nothing may be left.
fn says(fakes: &Fakes, args: &[&str]) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let output = fakes.program(Path::new(KVTIER), dir.path()).args(args).output().unwrap();
    Report::read(dir.path()).assert_clean();
    (
        output.status.success(),
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
    )
}

#[test]
fn without_a_gpu_the_doctor_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (fine, said) =
        says(&Fakes::new().without_cuda(), &["doctor", "gds", dir.path().to_str().unwrap()]);
    assert!(
        fine && said.contains("no NVIDIA driver here") && said.contains("host memory only"),
        "{said}"
    );
}

#[test]
fn with_a_gpu_the_doctor_names_what_decides() {
    let dir = tempfile::tempdir().unwrap();
    let (fine, said) =
        says(&Fakes::new().compat(), &["doctor", "gds", dir.path().to_str().unwrap(), "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let found = said["findings"].as_array().unwrap();
    assert!(fine && found[0]["found"] == "0: fake GPU 0", "{said}");
    // Whatever it is here: a kernel without modules, no udev, or the stand-in's compatibility mode.
    let last = found.last().unwrap();
    assert_eq!((&last["what"], &last["good"]), (&"outcome".into(), &false.into()), "{said}");
    assert_eq!(found[found.len() - 2]["good"], false, "{said}");
}

#[test]
fn the_bench_measures_what_there_is_and_says_why_not_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let args = ["bench", "gds", "--path", path, "--size", "1MiB", "--gb", "0.01"];
    let (fine, said) = says(&Fakes::new().without_cufile(), &args);
    assert!(fine, "{said}");
    let line = |way: &str| {
        said.lines().find(|line| line.starts_with(way)).unwrap_or_else(|| panic!("{way}: {said}"))
    };
    for way in ["copies from", "file to pinned", "pinned memory", "checksums on", "plain read"] {
        assert!(line(way).contains("to GPU"), "{said}");
    }
    assert!(line("cuFile ").contains("not measured: cuFile is required"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing stays");
    let output = Command::new(KVTIER)
        .args(["bench", "gds", "--path", path, "--size", "0"])
        .output()
        .unwrap();
    assert!(!output.status.success());
}
