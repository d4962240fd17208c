//! The choices, limits and progress of `rm`, `verify` and `migrate`, over a directory and a bucket.
#![allow(clippy::unwrap_used)]

mod places;
mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kvtier::file::Layout;
use places::{CHUNKS, Chunk, Dir, LEN, Place, count, kvtier, ok, places};
use serde_json::Value;

#[test]
fn rm_takes_a_model_and_an_age_together() {
    for place in places() {
        let name = place.name();
        place.age_model_a();
        let dry = ok(place.run(&["rm", &name, "--model", "org/a", "--older", "7d"]));
        assert_eq!(dry, "would remove 3 chunks (12 KiB); add --yes to do it\n");
        assert_eq!(count(&*place), 5);
        for (words, chosen) in [
            (&["--model", "org/b", "--older", "7d"][..], 0),
            (&["--model", "org/a", "--older", "2w"], 0),
            (&["--older", "7d"], 3),
            (&["--model", "org/b"], 2),
            (&["--model", "other"], 0),
            (&["--all", "--exclude", "*"], 0),
        ] {
            let said = ok(place.run(&[&["rm", &name], words].concat()));
            assert!(
                said.starts_with(&format!("would remove {chosen} chunks")),
                "{words:?}: {said}"
            );
        }
        let out =
            ok(place.run(&["rm", &name, "--model", "org/a", "--older", "7d", "--yes", "--json"]));
        let out: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(out, serde_json::json!({"removed": true, "chunks": 3, "bytes": 3 * LEN}));
        let left = ok(place.run(&["ls", &name]));
        let stays = |chunk: &Chunk| {
            left.contains(&chunk.key().digest().to_hex()) == (chunk.model == "org/b")
        };
        assert!(left.lines().count() == 2 && CHUNKS.iter().all(stays), "{left}");
        for words in
            [&["--older", "soon"][..], &["--include", "[a"], &["--exclude", "*"], &["--older", "7"]]
        {
            let out = place.run(&[&["rm", &name], words].concat());
            assert_eq!(out.status.code(), Some(2), "{words:?}");
        }
    }
}

#[test]
fn filters_and_limits_hold_for_verify_migrate_and_rm() {
    for place in places() {
        let name = place.name();
        let first = CHUNKS[0].key().digest().to_hex();
        let include = format!("{}*", &first[..20]);
        let words = [
            "verify",
            &name,
            "--include",
            &include,
            "--concurrency",
            "4",
            "--bwlimit",
            "1GiB",
            "--json",
        ];
        let verified: Value = serde_json::from_str(&ok(place.run(&words))).unwrap();
        assert_eq!(verified["chunks"], 1);
        let words = ["verify", &name, "--exclude", &include, "--json"];
        let verified: Value = serde_json::from_str(&ok(place.run(&words))).unwrap();
        assert_eq!(verified["chunks"], 4);
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to").display().to_string();
        // Of a salt only a digest is stored: such a chunk cannot be copied into a directory.
        let salted = CHUNKS[1].key().digest().to_hex();
        let exclude = ["--exclude", &include, "--exclude", &salted];
        let pace = ["--concurrency", "3", "--bwlimit", "1GiB", "--json"];
        let words = [&["migrate", &name, &to][..], &exclude, &pace].concat();
        let copied: Value = serde_json::from_str(&ok(place.run(&words))).unwrap();
        assert_eq!(copied["copied"], 3);
        assert_eq!(ok(kvtier(&["ls", &to])).lines().count(), 3);
        let words = [
            "rm",
            &name,
            "--include",
            &include,
            "--concurrency",
            "2",
            "--bwlimit",
            "1GiB",
            "--yes",
        ];
        assert!(ok(place.run(&words)).starts_with("removed 1 chunks"));
        assert_eq!(count(&*place), 4);
        for words in [&["--concurrency", "0"][..], &["--bwlimit", "0"], &["--bwlimit", "fast"]] {
            for command in
                [&["verify", &name][..], &["rm", &name, "--all"], &["migrate", &name, &to]]
            {
                let out = place.run(&[command, words].concat());
                assert_eq!(out.status.code(), Some(2), "{command:?} {words:?}");
            }
        }
    }
}

#[test]
fn a_limit_of_bytes_a_second_is_kept() {
    for place in places() {
        let name = place.name();
        let began = Instant::now();
        ok(place.run(&["verify", &name, "--bwlimit", "8KiB", "--concurrency", "5"]));
        // Five chunks of 4 KiB: the last begins after two seconds.
        assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
        let began = Instant::now();
        ok(place.run(&["rm", &name, "--all", "--bwlimit", "8KiB", "--yes"]));
        assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    }
}

#[test]
fn progress_is_printed_on_standard_error_where_it_is_asked_for() {
    for place in places() {
        let name = place.name();
        let said = |words: &[&str]| String::from_utf8(place.run(words).stderr).unwrap();
        assert_eq!(said(&["verify", &name]), "");
        assert!(said(&["verify", &name, "--progress"]).contains("20 KiB of 20 KiB"));
        let rm = said(&["rm", &name, "--model", "org/a", "--yes", "--progress"]);
        assert!(rm.contains("asked of 5 of 5 chunks") && rm.contains("12 KiB of 12 KiB"), "{rm}");
    }
}

/// Runs the command at a terminal; what it printed there.
fn at_a_terminal(words: &[&str]) -> String {
    let command = std::iter::once(env!("CARGO_BIN_EXE_kvtier"))
        .chain(words.iter().copied())
        .collect::<Vec<_>>()
        .join(" ");
    let out =
        Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output();
    ok(out.expect("the program `script` of util-linux"))
}

#[test]
fn at_a_terminal_a_bar_shows_progress() {
    let dir = Dir::filled(Layout::Kvtier);
    assert_eq!(at_a_terminal(&["ls", &dir.name()]).lines().count(), CHUNKS.len());
    // Slow enough that the bar is drawn between two chunks.
    let bar = at_a_terminal(&["verify", &dir.name(), "--bwlimit", "16KiB"]);
    assert!(bar.contains("/20.00 KiB") && bar.contains("eta"), "{bar:?}");
    let bar = at_a_terminal(&["rm", &dir.name(), "--all", "--yes", "--bwlimit", "16KiB"]);
    assert!(bar.contains("/20.00 KiB") && bar.contains("removed 5 chunks"), "{bar:?}");
}

#[test]
fn a_signal_ends_a_run_in_order() {
    let dir = Dir::filled(Layout::Kvtier);
    let to = dir.0.path().join("to").display().to_string();
    for words in [
        &["verify", &dir.name()][..],
        &["migrate", &dir.name(), &to],
        &["rm", &dir.name(), "--all", "--yes"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
        // A chunk in more than an hour: it ends by the signal.
        let child =
            command.args(words).args(["--bwlimit", "1"]).stdin(Stdio::null()).spawn().unwrap();
        let tasks = format!("/proc/{}/task", child.id());
        let waits = |task: fs::DirEntry| {
            fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.trim_end() == "signals")
        };
        while !fs::read_dir(&tasks).unwrap().flatten().any(waits) {
            std::thread::yield_now();
        }
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130), "{words:?}");
    }
}
