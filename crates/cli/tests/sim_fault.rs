//! What scripts read of `kvtier sim-fault`: its exit status and its JSON.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::Value;

fn sim_fault(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtier")).arg("sim-fault").args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let out = sim_fault(args);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn json_has_the_fields_of_a_run_and_is_the_same_in_each_process() {
    for scope in ["fleet", "directory", "layouts", "stack"] {
        let args = ["--seed", "3", "--scope", scope, "--json"];
        let run = json(&args);
        let mut keys: Vec<_> = run.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["digest", "events", "findings", "scope", "seed", "virtual_s"]);
        assert_eq!((run["seed"].as_u64(), run["scope"].as_str()), (Some(3), Some(scope)));
        assert!(run["events"].as_u64().unwrap() > 100 && run["virtual_s"].as_f64().unwrap() > 1.0);
        assert_eq!(run["findings"], Value::Array(Vec::new()));
        assert_eq!(json(&args), run);
        let other = json(&["--seed", "4", "--scope", scope, "--json"]);
        assert_ne!(other["digest"], run["digest"]);
    }
}

#[test]
fn the_scope_is_fleet_unless_named_and_text_names_the_seed() {
    let out = sim_fault(&["--seed", "3"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.starts_with("seed 3 of fleet: "), "{text}");
}

/// As a shortened schedule is run again.
#[test]
fn some_faults_of_a_seed_are_a_run_of_their_own() {
    let stack = ["--seed", "3", "--scope", "stack", "--json"];
    let run = |faults: &str| json(&[&stack[..], &["--faults", faults]].concat());
    let whole = json(&stack);
    let some = [run("none"), run("0,1"), run("0,1/1")];
    for (at, run) in some.iter().enumerate() {
        assert!(run["events"].as_u64().unwrap() > 100 && run["digest"] != whole["digest"]);
        assert!(some[..at].iter().all(|other| other["digest"] != run["digest"]));
    }
    assert_eq!(run("0,1/1"), some[2]);
    let out = sim_fault(&["--seed", "3", "--scope", "stack", "--faults", "999"]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code() == Some(2) && said.contains("there is no fault 999"), "{said}");
}

#[test]
fn bad_arguments_are_refused_with_2() {
    let no_faults = ["--seed", "1", "--faults", "a"];
    let no_scope = ["--seed", "1", "--scope", "cloud"];
    for args in [&[][..], &["--seed", "x"], &no_scope, &no_faults, &["--json"]] {
        let out = sim_fault(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(out.stdout.is_empty() && !out.stderr.is_empty(), "{args:?}");
    }
    let out = sim_fault(&["--seed", "1", "--scope", "cloud"]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("there are: fleet, directory, layouts, stack"), "{said}");
}
