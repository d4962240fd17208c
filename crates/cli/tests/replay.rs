//! The command as an operator runs it.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn kvtier(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(args).stdin(Stdio::null());
    command
}

fn json(args: &[&str]) -> Value {
    let Output { status, stdout, stderr } = kvtier(args).output().unwrap();
    assert!(status.success(), "{args:?}: {}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

/// Sessions that come back: each request is a prefix of an earlier one and something new.
fn trace(dir: &Path, requests: u64) -> (String, Vec<Vec<u64>>) {
    let mut all: Vec<Vec<u64>> = Vec::new();
    let mut next = 0;
    let mut x = 88_172_645_463_325_252u64;
    for _ in 0..requests {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let mut ids = all.get((x % 97) as usize % all.len().max(1)).cloned().unwrap_or_default();
        ids.truncate((x >> 20) as usize % 12);
        let n = 1 + (x >> 40) % 7;
        ids.extend(next..next + n);
        next += n;
        all.push(ids);
    }
    let path = dir.join("trace.jsonl");
    let lines = all.iter().map(|ids| {
        format!("{{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":{ids:?}}}\n")
    });
    fs::write(&path, lines.collect::<String>()).unwrap();
    (path.to_str().unwrap().to_owned(), all)
}

/// LRU from first principles; what a request holds stays until it is over.
struct Lru {
    order: VecDeque<u64>,
    held: Vec<u64>,
    cap: usize,
}

impl Lru {
    fn has(&self, id: &u64) -> bool {
        self.order.contains(id)
    }

    fn save(&mut self, id: u64) {
        if self.has(&id) {
            return;
        }
        while self.order.len() >= self.cap {
            let Some(at) = self.order.iter().position(|id| !self.held.contains(id)) else { return };
            self.order.remove(at);
        }
        self.order.push_back(id);
    }

    /// The first becomes the most recent.
    fn touch(&mut self, chain: &[u64]) {
        for id in chain.iter().rev() {
            if let Some(at) = self.order.iter().position(|cached| cached == id) {
                self.order.remove(at);
                self.order.push_back(*id);
            }
        }
    }

    fn save_all(&mut self, chain: &[u64]) {
        chain.iter().for_each(|id| self.save(*id));
        self.touch(chain);
    }

    fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.touch(&held);
    }
}

/// Memory over files, with the given numbers of blocks. A block in memory is not asked of the files; one
/// found in the files is taken into memory; a new one goes to both. Of what was loaded or saved at
/// once, and of what a request held, the head becomes the most recent.
fn simulate(requests: &[Vec<u64>], caps: [usize; 2]) -> (usize, usize) {
    const AT_ONCE: usize = 16;
    let [mut memory, mut files] =
        caps.map(|cap| Lru { order: VecDeque::new(), held: Vec::new(), cap });
    let mut hits = 0;
    let mut blocks = 0;
    for ids in requests {
        let prefix = ids.iter().take_while(|id| memory.has(id) || files.has(id)).count();
        (hits, blocks) = (hits + prefix, blocks + ids.len());
        (memory.held, files.held) = ids[..prefix].iter().partition(|id| memory.has(id));
        for loaded in ids[..prefix].chunks(AT_ONCE) {
            let below: Vec<u64> = loaded.iter().copied().filter(|id| !memory.has(id)).collect();
            memory.touch(loaded);
            files.touch(&below);
            memory.save_all(&below);
        }
        for saved in ids[prefix..].chunks(AT_ONCE) {
            memory.save_all(saved);
            files.save_all(saved);
        }
        memory.release();
        files.release();
    }
    (hits, blocks)
}

fn host_config(bytes: usize, policy: &str) -> String {
    serde_json::json!({"tiers": [{"type": "host", "bytes": bytes, "policy": policy}]}).to_string()
}

/// One request at a time.
fn replay(trace: &str, config: &Path) -> Value {
    let how = ["--chunk-bytes", "4096", "--concurrency", "1", "--json"];
    json(&[&["replay", trace, "--config", config.to_str().unwrap()], &how[..]].concat())
}

/// The tier hits what the simulator predicts for a policy, if one request is a small part of the
/// cache: the tier gets a request in batches, the simulator as a whole.
#[test]
fn the_simulator_and_the_host_tier_agree() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, sizes) in [("chat", "5%,20%,40%"), ("agents", "40%")] {
        let trace = dir.path().join(format!("{kind}.jsonl"));
        let out = kvtier(&["gen-trace", kind, "--requests", "300"]).output().unwrap();
        assert!(out.status.success());
        fs::write(&trace, out.stdout).unwrap();
        let trace = trace.to_str().unwrap();
        for policy in ["default", "lru"] {
            let sim = json(&["sim", trace, "--policy", policy, "--sizes", sizes, "--json"]);
            for cell in sim["cells"].as_array().unwrap() {
                let config = dir.path().join("host.json");
                fs::write(
                    &config,
                    host_config(cell["blocks"].as_u64().unwrap() as usize * 4096, policy),
                )
                .unwrap();
                let ratio = replay(trace, &config)["prefix_hit_ratio"].as_f64().unwrap();
                let expected = cell["prefix_hit_ratio"].as_f64().unwrap();
                assert!(
                    (ratio - expected).abs() < 0.01,
                    "{kind}, {policy}: {ratio}, the simulator says {expected}: {cell}"
                );
            }
        }
    }
}

#[test]
fn one_at_a_time_the_hit_ratio_is_that_of_an_independent_simulation() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, requests) = trace(dir.path(), 400);
    for cap in [16, 64, 200] {
        let config = dir.path().join("host.json");
        fs::write(&config, host_config(cap * 4096, "lru")).unwrap();
        let out = replay(&trace, &config);
        let (hits, blocks) = simulate(&requests, [cap, 0]);
        assert!(hits > 0);
        assert_eq!(
            (out["prefix_hits"].as_u64(), out["blocks"].as_u64()),
            (Some(hits as u64), Some(blocks as u64)),
            "cap {cap}"
        );
        assert_eq!(out["prefix_hit_ratio"].as_f64().unwrap(), hits as f64 / blocks as f64);
    }
}

/// The files' order is nearly LRU's: several are written at once and evicted a few at a time.
#[test]
fn one_at_a_time_memory_over_files_hits_as_an_independent_simulation_does() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, requests) = trace(dir.path(), 600);
    for (memory, files) in [(20, 60), (40, 200), (100, 500)] {
        let path = dir.path().join(format!("{files}"));
        // A block of 4096 bytes is a file of 8192: its footer has a page of its own.
        let memory_bytes = memory * 4096;
        let file_bytes = files * 8192;
        let config = dir.path().join("both.json");
        let tiers = serde_json::json!({"tiers": [
            {"type": "host", "bytes": memory_bytes, "policy": "lru"},
            {"type": "file", "path": path, "bytes": file_bytes, "policy": "lru"},
        ]});
        fs::write(&config, tiers.to_string()).unwrap();
        let out = replay(&trace, &config);
        let (hits, blocks) = simulate(&requests, [memory, files]);
        let ratio = out["prefix_hit_ratio"].as_f64().unwrap();
        let expected = hits as f64 / blocks as f64;
        assert!(
            (ratio - expected).abs() < 0.01,
            "{memory} over {files}: {ratio}, the simulation says {expected}"
        );
    }
}

#[test]
fn eight_at_once_with_a_second_process_no_byte_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, _) = trace(dir.path(), 600);
    let files = dir.path().join("kv");
    let args = [
        "replay",
        &trace,
        "--path",
        files.to_str().unwrap(),
        "--host-bytes",
        "2MiB",
        "--file-bytes",
        "24MiB",
    ];
    let out = json(&[&args[..], &["--chunk-bytes", "50000", "--peers", "1", "--json"]].concat());
    assert_eq!(out["wrong_bytes"], 0);
    assert_eq!(out["failures"], 0);
    assert!(out["peer_loads"].as_u64().unwrap() > 100);
    for field in ["wall_s", "cpu_s"] {
        assert!(out[field].as_f64().unwrap() > 0.0);
    }
    let found: u64 =
        out["tiers"].as_array().unwrap().iter().map(|tier| tier["found"].as_u64().unwrap()).sum();
    assert!(
        found >= out["prefix_hits"].as_u64().unwrap(),
        "some tier answered for each block of a prefix"
    );
    let tier = &out["tiers"][1];
    assert_eq!(tier["name"], "file");
    assert!(tier["found"].as_u64().unwrap() > 0, "memory is too small for all");
    for field in ["hits", "misses", "bytes_loaded", "bytes_saved", "load_p50_ms", "load_p99_ms"] {
        assert!(tier[field].is_number(), "{field}");
    }
    assert!(fs::read_dir(files.join(".kvtier/tmp")).unwrap().next().is_none());
}

#[test]
fn bad_input_says_what_where_and_what_to_do_and_ends_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("bad.jsonl"), "{\"hash_ids\":[1]}\n{\"hash_ids\":\"x\"}\n").unwrap();
    fs::write(path("empty.jsonl"), "").unwrap();
    fs::write(path("cut.bin"), [1, 0, 0, 0, 0, 1]).unwrap();
    fs::write(path("none.bin"), [0, 0, 0, 0, 0, 1, 0, 0]).unwrap();
    let header = [[1u32, 256], [0, 0], [0, 0]].concat();
    fs::write(
        path("blank.bin"),
        header.iter().chain(&[0]).flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>(),
    )
    .unwrap();
    let zero = path("none.bin");
    let blank = path("blank.bin");
    fs::create_dir(path("mine")).unwrap();
    fs::write(path("mine/letter.txt"), "dear").unwrap();
    let bad = path("bad.jsonl");
    let empty = path("empty.jsonl");
    let cut = path("cut.bin");
    let none = path("none.jsonl");
    let mine = path("mine");
    let cases: [(&[&str], &[&str]); 10] = [
        (&[&zero], &["none.bin", "holds no request"]),
        (&[&blank], &["blank.bin", "request 1", "no block"]),
        (&[&none], &["none.jsonl", "check the path"]),
        (&[&bad], &["bad.jsonl:2", "hash_ids"]),
        (&[&empty], &["empty.jsonl", "no request"]),
        (&[&cut], &["cut.bin", "binary trace"]),
        (&["--path", &mine], &["mine", "letter.txt", "choose an empty directory"]),
        (&["--chunk-bytes", "many"], &["--chunk-bytes", "256KiB"]),
        (&["--config", &none], &["none.jsonl", "configuration"]),
        (&["--requests", "0"], &["--requests 0"]),
    ];
    for (args, says) in cases {
        let out = kvtier(&[&["replay"], args].concat()).output().unwrap();
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        assert!(says.iter().all(|s| text.contains(s)), "{args:?}: {text}");
    }
    assert_eq!(fs::read_dir(&mine).unwrap().count(), 1);
    // A configuration says where and how large its tiers are: what contradicts it is not passed
    // over.
    for own in [["--path", &mine], ["--host-bytes", "1MiB"], ["--file-bytes", "1MiB"]] {
        let out = kvtier(&[&["replay", "--config", &none], &own[..]].concat()).output().unwrap();
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(
            out.status.code() == Some(2) && text.contains("cannot be used with"),
            "{own:?}: {text}"
        );
    }
}

#[test]
fn bench_file_prints_the_cells_that_were_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv");
    let args = [
        "bench",
        "file",
        "--path",
        path.to_str().unwrap(),
        "--op",
        "put,get",
        "--size",
        "64KiB,1MiB",
        "--concurrency",
        "1,4",
    ];
    for engine in ["uring", "threads"] {
        let out = json(&[&args[..], &["--gb", "0.01", "--engine", engine, "--json"]].concat());
        let cells = out["cells"].as_array().unwrap();
        assert_eq!(cells.len(), 8);
        for field in
            ["size", "concurrency", "mb_per_s", "cpu_s_per_gb", "p50_ms", "p99_ms", "rss_mib"]
        {
            assert!(cells.iter().all(|c| c[field].is_number()), "{field}");
        }
    }
    let chunks = fs::read_dir(&path).unwrap().flatten().filter(|e| e.file_name() != ".kvtier");
    assert!(
        chunks.flat_map(|d| fs::read_dir(d.path()).unwrap()).next().is_none(),
        "the bench cleans up"
    );
}
