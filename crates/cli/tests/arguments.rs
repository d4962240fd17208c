//! Arguments do what they say, or are refused: none is taken and dropped.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn kvtier(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtier")).args(words).stdin(Stdio::null()).output().unwrap()
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&[&out.stdout[..], &out.stderr[..]].concat()).into_owned()
}

/// Whether the command is refused with exit code 2 in words that hold all of `says`.
fn refused(words: &[&str], says: &[&str]) {
    let out = kvtier(words);
    let said = text(&out);
    assert_eq!(out.status.code(), Some(2), "{words:?}: {said}");
    for part in says {
        assert!(said.contains(part), "{words:?} does not say {part:?}: {said}");
    }
}

fn json(words: &[&str]) -> Value {
    let out = kvtier(words);
    assert!(out.status.success(), "{words:?}: {}", text(&out));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn filled(dir: &Path) -> String {
    let path = dir.join("kv").to_str().unwrap().to_owned();
    json(&["replay", "--path", &path, "--chunk-bytes", "5000", "--requests", "5", "--json"]);
    path
}

#[test]
fn more_requests_than_the_default_are_replayed() {
    let report = json(&["replay", "--requests", "2100", "--chunk-bytes", "16", "--json"]);
    assert_eq!(report["requests"], 2100);
    refused(&["replay", "--requests", "999999999"], &["--requests", "gen-trace"]);
}

#[test]
fn what_one_of_three_copies_cannot_use_it_does_not_take() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path());
    let archive = dir.path().join("kv.archive").to_str().unwrap().to_owned();
    for flag in [
        "--to-layout=lmcache-mp",
        "--bytes=1GiB",
        "--shape=2x32x256x1024",
        "--to-endpoint=http://127.0.0.1:1",
    ] {
        refused(&["export", &path, &archive, flag], &[flag.split_once('=').unwrap().0]);
    }
    refused(&["export", &path, "-"], &["standard input and output"]);
    refused(&["import", "-", &path], &["standard input and output"]);
    assert!(kvtier(&["export", &path, &archive]).status.success());
    let to = dir.path().join("to").to_str().unwrap().to_owned();
    for flag in ["--from-layout=lmcache-mp", "--unverified", "--tenant=acme"] {
        refused(&["import", &archive, &to, flag], &[flag.split('=').next().unwrap()]);
    }
    for flag in
        ["--to-endpoint=http://127.0.0.1:1", "--to-region=here", "--endpoint=http://127.0.0.1:1"]
    {
        refused(&["migrate", &path, &to, flag], &[flag.split_once('=').unwrap().0, "leave"]);
        if flag.starts_with("--endpoint") {
            refused(&["ls", &path, flag], &["--endpoint", "leave"]);
        }
    }
    refused(
        &["migrate", &path, &to, "--shape", "2x32x256x1024", "--to-layout", "kvtier"],
        &["--shape"],
    );
    refused(&["migrate", &path, &to, "--shape", "2x32x256x1024"], &["--shape", "layout kvtier"]);
    refused(&["ls", &path, "--instance-metadata"], &["--instance-metadata", "leave"]);
    refused(&["migrate", &path, &to, "--instance-metadata"], &["--instance-metadata", "leave"]);
    refused(&["migrate", &path, &to, "--tenant", "acme"], &["--unverified"]);
    assert!(!Path::new(&to).exists(), "what is refused writes nothing");
    assert!(kvtier(&["import", &archive, &to, "--bytes", "1GiB"]).status.success());
    assert_eq!(json(&["stat", &to, "--json"])["capacity_bytes"], 1u64 << 30);
}

#[test]
fn a_trace_is_written_in_the_form_that_its_name_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let make = |name: &str| {
        let out = kvtier(&[
            "gen-trace",
            "agents",
            "--requests",
            "300",
            "--seed",
            "3",
            "--out",
            &path(name),
        ]);
        assert!(out.status.success(), "{}", text(&out));
        json(&["sim", &path(name), "--policy", "default,lru,optimum", "--json"])
    };
    let lines = make("t.jsonl");
    let binary = make("t.bin");
    let compressed = make("t.bin.zst");
    assert_eq!(binary, lines);
    assert_eq!(compressed, lines);
    let len = |name: &str| fs::metadata(path(name)).unwrap().len();
    assert!(len("t.bin.zst") < len("t.bin") && len("t.bin") < len("t.jsonl"));
    refused(&["gen-trace", "chat", "--out", &path("t.jsonl.gz")], &[".bin.zst"]);
    assert!(!dir.path().join("t.jsonl.gz").exists());
    refused(&["gen-trace", "chat", "--documents", "7"], &["--documents", "rag"]);
}

#[test]
fn what_would_have_no_effect_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t.jsonl");
    fs::write(&trace, "{\"hash_ids\":[1,2,3]}\n").unwrap();
    let trace = trace.to_str().unwrap();
    refused(&["sim", trace, "--plot", "x.png"], &["--plot", ".svg"]);
    refused(&["replay", trace, "--seed", "7"], &["--seed"]);
    refused(&["plan", "--model", "llama-3.1-8b", "--kv-heads", "4"], &["--kv-heads"]);
}

#[test]
fn numbers_below_zero_are_read_as_numbers() {
    refused(&["gen-trace", "chat", "--turns", "-1"], &["--turns -1", "above 0"]);
    refused(&["replay", "--requests", "-1"], &["-1", "--requests"]);
    let advice = text(&kvtier(&["replay", "--requests", "-1"]));
    assert!(!advice.contains("-- -1"), "{advice}");
}

#[test]
fn sizes_are_taken_as_kubernetes_writes_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv").to_str().unwrap().to_owned();
    let words = [
        "replay",
        "--path",
        &path,
        "--chunk-bytes",
        "4Ki",
        "--requests",
        "2",
        "--file-bytes",
        "1Gi",
        "--json",
    ];
    assert_eq!(json(&words)["chunk_bytes"], 4096);
    assert_eq!(json(&["stat", &path, "--json"])["capacity_bytes"], 1u64 << 30);
}

#[test]
fn a_directory_that_is_not_there_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone").to_str().unwrap().to_owned();
    for medium in ["gds", "file"] {
        refused(&["doctor", medium, &gone], &[&gone]);
    }
    let file = dir.path().join("file");
    fs::write(&file, b"x").unwrap();
    refused(&["doctor", "gds", file.to_str().unwrap()], &["not a directory"]);
}

#[test]
fn the_cpu_time_of_next_to_nothing_is_not_said_by_gigabyte() {
    let report = json(&["replay", "--requests", "2", "--chunk-bytes", "16", "--json"]);
    assert!(
        report["cpu_s_per_gb"].is_null() && report["tiers"][0]["cpu_s_per_gb"].is_null(),
        "{report}"
    );
    let report = json(&["replay", "--requests", "200", "--chunk-bytes", "64KiB", "--json"]);
    assert!(report["cpu_s_per_gb"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn a_bad_line_of_a_trace_is_said_in_the_traces_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    for (line, says) in [
        ("[1]", "it is a list, not an object"),
        ("{}", "no `hash_ids`"),
        ("{\"hash_ids\":{}}", "`hash_ids` is an object, not a list"),
        ("{\"hash_ids\":[-1]}", "holds -1"),
        ("{\"hash_ids\":[1],\"timestamp\":\"x\"}", "`timestamp` is a text"),
        ("{\"hash_ids\":[1],\"session\":1e20}", "`session`"),
        ("{\"hash_ids\":", "not JSON"),
    ] {
        fs::write(&path, format!("{line}\n")).unwrap();
        let path = path.to_str().unwrap();
        refused(&["replay", path], &[":1:", says]);
        let said = text(&kvtier(&["sim", path]));
        assert!(!said.contains("struct") && !said.contains("invalid type"), "{said}");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvtier"))
        .arg("key")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{\"name\": 7}\n").unwrap();
    let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    assert!(said.contains("`name` is a number, not a text"), "{said}");
}

/// A web server that has a page for whatever is asked.
fn web_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                use std::io::{BufRead, BufReader, Read};
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                let mut len = 0;
                while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                    let lower = line.to_ascii_lowercase();
                    len = lower
                        .strip_prefix("content-length:")
                        .map_or(len, |n| n.trim().parse().unwrap());
                    line.clear();
                }
                std::io::copy(&mut reader.take(len), &mut std::io::sink()).unwrap();
                let page = "<!doctype html><html><body>It works!<br></body></html>";
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    page.len()
                );
                let _ = stream.write_all(format!("{head}{page}").as_bytes());
            });
        }
    });
    format!("http://{address}")
}

#[test]
fn a_web_server_that_is_no_s3_store_is_called_so() {
    let url = web_server();
    let asked = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
        command
            .args(words)
            .env_clear()
            .env("AWS_ACCESS_KEY_ID", "AKIDTEST")
            .env("AWS_SECRET_ACCESS_KEY", "secret");
        command.env("AWS_REGION", "us-east-1").output().unwrap()
    };
    for words in [
        &["ls", "s3://bucket", "--endpoint", &url][..],
        &["doctor", "s3", "--bucket", "b", "--endpoint", &url],
    ] {
        let out = asked(words);
        let said = text(&out);
        assert!(
            !out.status.success() && said.contains("S3 store") && said.contains("endpoint"),
            "{said}"
        );
        assert!(!said.contains("corrupt"), "{said}");
    }
}

#[test]
fn a_trace_that_was_not_finished_leaves_no_file() {
    use nix::sys::signal::{Signal, kill};
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t.jsonl");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(["gen-trace", "agents", "--requests", "100000000", "--out"]).arg(&out);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let files = || fs::read_dir(dir.path()).unwrap().count();
    while files() == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        std::thread::yield_now();
    }
    kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(files(), 0);
    let none = dir.path().join("none/t.jsonl").display().to_string();
    refused(&["gen-trace", "chat", "--out", &none], &["none/t.jsonl", "check the path"]);
}

#[test]
fn a_short_trace_is_simulated_at_the_default_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t.jsonl").display().to_string();
    assert!(kvtier(&["gen-trace", "chat", "--requests", "5", "--out", &trace]).status.success());
    assert!(json(&["sim", &trace, "--json"]).is_object());
    let text = dir.path().join("t.txt");
    fs::write(&text, "timestamp,hash_ids\n1,2\n").unwrap();
    refused(
        &["sim", text.to_str().unwrap()],
        &["t.txt:1: no request: not JSON: it does not begin with {"],
    );
}
