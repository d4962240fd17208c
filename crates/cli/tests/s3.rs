//! `kvtier bench s3` and `kvtier doctor s3` against a server in memory that checks signatures.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use kvtier_testkit::s3::{Fault, Rule, Server, Setup};
use serde_json::Value;

fn kvtier(server: &Server, secret: &str, words: &str) -> Output {
    kvtier_on(server, "bucket", secret, &format!("{words} --json"))
}

fn kvtier_on(server: &Server, bucket: &str, secret: &str, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(words.split(' ')).args(["--endpoint", &server.url(), "--bucket", bucket]);
    command.env_clear().env("AWS_ACCESS_KEY_ID", "AKIDTEST").env("AWS_SECRET_ACCESS_KEY", secret);
    command.output().unwrap()
}

const SECRET: &str = "secret/test+key";

fn json(out: &Output) -> Value {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// How many requests of a method the server saw, and that none of them failed.
fn seen(server: &Server, method: &str) -> usize {
    let seen = server.seen();
    assert!(seen.iter().all(|request| request.status < 300));
    // One listing looks for what an earlier run left.
    seen.iter()
        .filter(|request| request.method == method && !request.target.contains("list-type"))
        .count()
}

#[test]
fn bench_prints_the_cells_that_were_asked_for_and_cleans_up() {
    let server = Server::start(Setup::default()).unwrap();
    let words =
        "bench s3 --style path --op put,get,head --size 64KiB,1MiB --concurrency 1,4 --gb 0.01";
    let out = json(&kvtier(&server, SECRET, words));
    let cells = out["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 12);
    for cell in cells {
        for field in [
            "size",
            "concurrency",
            "mb_per_s",
            "p50_ms",
            "p99_ms",
            "rss_mib",
            "ops_per_s",
            "cpu_us_per_op",
        ] {
            assert!(cell[field].is_number(), "{field}: {cell}");
        }
        assert_eq!(cell["cpu_s_per_gb"].is_number(), cell["op"] != "head", "heads move no bytes");
    }
    // Two for each in flight warm up; of puts no more than there are objects.
    let requests = 2 * (153 + 10) + 2 * (2 + 2 * 4);
    for method in ["PUT", "GET", "HEAD"] {
        assert_eq!(seen(&server, method), requests, "{method}");
    }
    for target in
        server.seen().into_iter().filter(|seen| seen.method == "PUT").map(|seen| seen.target)
    {
        assert!(
            server.object(target.trim_start_matches("/bucket/")).is_none(),
            "{target} was left behind"
        );
    }
}

#[test]
fn what_a_killed_bench_leaves_the_next_removes() {
    let server = Server::start(Setup::default()).unwrap();
    let mut first = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    first.args("bench s3 --style path --op put --size 64KiB --gb 100".split(' '));
    first.args(["--endpoint", &server.url(), "--bucket", "bucket"]);
    first.env_clear().env("AWS_ACCESS_KEY_ID", "AKIDTEST").env("AWS_SECRET_ACCESS_KEY", SECRET);
    let mut first = first.stdout(Stdio::null()).spawn().unwrap();
    let put = |server: &Server| -> Vec<String> {
        let puts = server.seen().into_iter().filter(|seen| seen.method == "PUT");
        puts.map(|seen| seen.target.trim_start_matches("/bucket/").to_owned()).collect()
    };
    let late = Instant::now() + Duration::from_secs(120);
    while put(&server).len() < 10 && Instant::now() < late {
        std::thread::sleep(Duration::from_millis(5));
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let left =
        |server: &Server| put(server).iter().filter(|key| server.object(key).is_some()).count();
    assert!(left(&server) > 0, "it was killed before it began");
    server.put_object("kvtier-bench/another-host.1.5f/0", vec![0; 8]);
    json(&kvtier(&server, SECRET, "bench s3 --style path --op put --size 64KiB --gb 0.001"));
    assert_eq!(left(&server), 0);
    assert!(server.object("kvtier-bench/another-host.1.5f/0").is_some(), "who wrote that may live");
}

#[test]
fn a_first_get_finds_what_was_written_unmeasured() {
    let server = Server::start(Setup::default()).unwrap();
    let out = json(&kvtier(&server, SECRET, "bench s3 --op get --size 1MiB --gb 0.003"));
    assert_eq!(out["cells"].as_array().unwrap().len(), 1);
    assert_eq!(out["cells"][0]["ops"], 3);
    assert_eq!((seen(&server, "PUT"), seen(&server, "GET")), (3, 3 + 16));
}

/// The targets of all PUTs, in order.
fn puts(server: &Server) -> Vec<String> {
    server.seen().into_iter().filter(|seen| seen.method == "PUT").map(|seen| seen.target).collect()
}

#[test]
fn measured_puts_write_new_keys_or_with_same_keys_only_keys_that_exist() {
    let words = "bench s3 --op put --size 64KiB --concurrency 4 --gb 0.002";
    for (flag, warm_up) in [("", 8), (" --same-keys", 31)] {
        let server = Server::start(Setup::default()).unwrap();
        let out = json(&kvtier(&server, SECRET, &format!("{words}{flag}")));
        let cell = &out["cells"][0];
        assert_eq!((&cell["ops"], &cell["same_keys"]), (&31.into(), &(!flag.is_empty()).into()));
        let written = puts(&server);
        assert_eq!(written.len(), warm_up + 31, "{flag}");
        let (before, measured) = written.split_at(warm_up);
        // The listing for what an earlier run left is no part of it.
        let asked = server
            .seen()
            .into_iter()
            .filter(|seen| !seen.target.contains("list-type"))
            .collect::<Vec<_>>();
        let removal =
            asked.iter().position(|seen| seen.method == "POST" && seen.target.contains("delete"));
        let expected = if flag.is_empty() { warm_up } else { written.len() };
        assert_eq!(
            removal,
            Some(expected),
            "objects of the warm-up pass are removed first, unless they are to be overwritten"
        );
        let mut distinct = measured.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 31);
        assert!(flag.is_empty() || measured.iter().all(|key| before.contains(key)));
    }
}

#[test]
fn a_warm_up_pass_is_not_measured() {
    const STALL_MS: u64 = 3000;
    // The requests of the warm-up pass are slow: half of all or more, had they been measured.
    for (op, method, times) in [("put", "PUT", 4), ("get", "GET", 16), ("head", "HEAD", 16)] {
        let server = Server::start(Setup::default()).unwrap();
        server.script(
            Rule::next(Fault::Stall(Duration::from_millis(STALL_MS))).method(method).times(times),
        );
        let out = json(&kvtier(
            &server,
            SECRET,
            &format!("bench s3 --op {op} --size 64KiB --concurrency 8 --gb 0.00026"),
        ));
        let cell = &out["cells"][0];
        assert_eq!(cell["ops"], 4);
        assert!(cell["p50_ms"].as_f64().unwrap() < STALL_MS as f64, "{cell}");
    }
}

#[test]
fn bad_arguments_and_refusals_end_with_code_2_and_no_secret() {
    let server = Server::start(Setup::default()).unwrap();
    for (secret, words, says) in [
        (SECRET, "bench s3 --op post", "choose put, get, head"),
        (SECRET, "bench s3 --style sideways", "choose path or virtual"),
        (SECRET, "bench s3 --gb 0", "more than 0"),
        (SECRET, "bench s3 --ca-bundle /nonexistent", "--ca-bundle"),
        ("wrong-secret", "bench s3 --size 64KiB --gb 0.001", "SignatureDoesNotMatch"),
        ("", "bench s3", "AWS_SECRET_ACCESS_KEY"),
    ] {
        let out = kvtier(&server, secret, words);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{words}: {text}");
        assert!(
            text.contains(says) && !text.contains("wrong-secret") && !text.contains(SECRET),
            "{words}: {text}"
        );
    }
}

/// As on a machine where a role, a process or a metadata service gives credentials.
#[cfg(feature = "aws-config")]
#[test]
fn credentials_may_come_from_wherever_the_aws_sdks_look() {
    let server = Server::start(Setup::default()).unwrap();
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".aws");
    let script = home.path().join("who");
    std::fs::create_dir(&folder).unwrap();
    let pair = format!(
        r#"{{"Version": 1, "AccessKeyId": "AKIDTEST", "SecretAccessKey": "{SECRET}", "SessionToken": "t", "Expiration": "2099-01-01T00:00:00Z"}}"#
    );
    let log = home.path().join("runs");
    std::fs::write(&script, format!("echo run >> {}\necho '{pair}'", log.display())).unwrap();
    std::fs::write(
        folder.join("config"),
        format!("[default]\ncredential_process = /bin/sh {}\n", script.display()),
    )
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(LOOK.split(' ')).args([
        "--endpoint",
        &server.url(),
        "--bucket",
        "bucket",
        "--json",
    ]);
    let out = json(&command.env_clear().env("HOME", home.path()).output().unwrap());
    let text = found(&out, "credentials").0;
    assert!(
        text.starts_with("AKIDTEST, from the credential_process of a profile, good for another "),
        "{text}"
    );
    let runs = std::fs::read_to_string(home.path().join("runs")).unwrap().lines().count();
    assert!(
        runs <= 3,
        "the process ran {runs} times: once to look, once for each concurrency that is measured at the most"
    );
}

const LOOK: &str = "doctor s3 --gb 0.002 --size 64KiB --concurrency 1,4";

/// What was found under a name, and the advice.
fn found(out: &Value, what: &str) -> (String, Option<String>) {
    let all = out["findings"].as_array().unwrap();
    let one = all.iter().find(|one| one["what"] == what).unwrap_or_else(|| panic!("{what}: {out}"));
    (one["found"].as_str().unwrap().to_owned(), one["advice"].as_str().map(str::to_owned))
}

#[test]
fn doctor_finds_what_a_strict_store_can_do_and_leaves_nothing_behind() {
    let server = Server::start(Setup::default()).unwrap();
    let out = json(&kvtier(&server, SECRET, LOOK));
    assert_eq!(
        found(&out, "credentials").0,
        "AKIDTEST, from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment"
    );
    assert!(found(&out, "bucket").0.ends_with("path style"));
    let (tls, risk) = found(&out, "TLS");
    assert!(tls.contains("plain HTTP") && risk.unwrap().contains("anyone on the path"));
    for (what, is) in [
        (
            "checksums",
            "crc32c verified and returned, crc64nvme verified and returned, sha256 verified and returned",
        ),
        ("conditional PUT", "honoured"),
        ("signed bodies", "not wanted"),
        ("ranges", "yes"),
        ("if-match", "yes"),
        (
            "listing",
            "complete at once, sorted, pages as asked, start-after, folds at /, any prefix",
        ),
        ("many deletes", "yes"),
        ("versioning", "off"),
        ("object lock", "off"),
        ("lifecycle rules", "none that touch objects"),
        ("clock", "the store's is ours, within a second or so"),
    ] {
        assert_eq!(found(&out, what), (is.to_owned(), None), "{what}");
    }
    assert_eq!(out["settings"]["checksum"], "crc32c");
    assert_eq!(
        (&out["settings"]["path_style"], &out["settings"]["s3_region"]),
        (&true.into(), &"us-east-1".into())
    );
    assert!([1, 4].contains(&out["settings"]["s3_max_io_concurrency"].as_u64().unwrap()));
    assert!(out["settings"]["evictor"].is_null(), "nodes agree by themselves here");
    for name in out["settings"].as_object().unwrap().keys().filter(|name| *name != "type") {
        assert!(out["reasons"][name].is_string(), "no reason for {name}");
    }
    assert_eq!(out["rates"].as_array().unwrap().len(), 2);
    assert!(out["rates"][0]["get_mb_per_s"].as_f64().unwrap() > 0.0);
    for seen in server.seen().into_iter().filter(|seen| seen.method == "PUT") {
        let key =
            seen.target.trim_start_matches("/bucket/").replace("%20", " ").replace("%2B", "+");
        assert!(
            server.object(&key.replace("%25", "%").replace("%C3%A9", "é")).is_none(),
            "{key} was left behind"
        );
    }
}

/// What the doctor recommends is a tier of a configuration as it stands.
#[test]
fn settings_of_the_doctor_go_into_a_configuration() {
    let mut setup = Setup::default();
    setup.overwrites = true;
    let server = Server::start(setup).unwrap();
    let out = json(&kvtier(&server, SECRET, LOOK));
    assert_eq!(out["settings"]["evictor"], "single");
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    std::fs::write(file.path(), serde_json::json!({ "tiers": [out["settings"]] }).to_string())
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(["config", "check", "--json"]).arg(file.path()).env_clear();
    json(
        &command
            .env("AWS_ACCESS_KEY_ID", "AKIDTEST")
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .output()
            .unwrap(),
    );
}

#[test]
fn bench_and_doctor_take_a_checksum_and_http2() {
    let server = Server::start(Setup::default()).unwrap();
    json(&kvtier(&server, SECRET, "bench s3 --op put --size 64KiB --gb 0.0001 --checksum sha256"));
    let put = server.seen().into_iter().find(|seen| seen.method == "PUT").unwrap();
    assert!(put.header("x-amz-checksum-sha256").is_some());
    for (words, says) in
        [("--checksum md5", "choose none, crc32c"), ("--http2 maybe", "choose off, auto")]
    {
        let out = kvtier(&server, SECRET, &format!("bench s3 {words}"));
        assert_eq!(out.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&out.stderr).contains(says));
    }
}

const RULE: &str = "<LifecycleConfiguration><Rule><ID>old</ID><Filter/><Status>Enabled</Status><Expiration><Days>1</Days>\
    </Expiration></Rule></LifecycleConfiguration>";

#[test]
fn doctor_names_what_a_poor_store_lacks_and_what_to_do() {
    let mut setup = Setup::default();
    (setup.overwrites, setup.deletes_singly, setup.refuse_unsigned, setup.versioned) =
        (true, true, true, true);
    setup.clock_ahead_s = 2 * 3600;
    setup.lifecycle = Some(RULE.into());
    let server = Server::start(setup).unwrap();
    let out = json(&kvtier(&server, SECRET, LOOK));
    for (what, is, advice) in [
        ("conditional PUT", "ignored: it overwrites", "both pay"),
        ("signed bodies", "wanted by the store", "hashing costs"),
        ("many deletes", "no", "one request an object"),
        ("versioning", "on", "old versions"),
        ("lifecycle rules", "old", "deletes or moves objects itself"),
        ("clock", "the store's is 7200 s ahead", "set this machine's clock"),
    ] {
        let (found, advised) = found(&out, what);
        // Between its answer and our look a second may begin.
        assert_eq!(found.replace("7199", "7200"), is);
        assert!(
            advised.as_deref().is_some_and(|text| text.contains(advice)),
            "{what}: {advised:?}"
        );
    }
}

#[test]
fn doctor_on_s3_express() {
    let mut setup = Setup::default();
    let bucket = "kv--use1-az4--x-s3";
    setup.bucket = bucket.into();
    let server = Server::start(setup).unwrap();
    let out = kvtier_on(&server, bucket, SECRET, &format!("{LOOK} --region us-east-1 --json"));
    let out = json(&out);
    assert_eq!(found(&out, "provider").0, "express");
    assert_eq!(
        found(&out, "listing").0,
        "complete at once, unsorted, pages as asked, no start-after, folds at /, prefixes end in /"
    );
    assert_eq!(found(&out, "many deletes").0, "yes");
    assert!(found(&out, "versioning").0.starts_with("unknown"));
    assert!(server.sessions_made() > 0);
}

#[test]
fn doctor_speaks_to_people_too_and_refuses_what_it_cannot_do() {
    let server = Server::start(Setup::default()).unwrap();
    let out = kvtier_on(&server, "bucket", SECRET, "doctor s3 --concurrency 0");
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success());
    for line in [
        "credentials      AKIDTEST, from",
        "-> anyone on the path",
        "set              checksum = \"crc32c\": the store",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains(SECRET) && !text.contains("s3_max_io_concurrency"));
    let out = kvtier_on(&server, "absent", SECRET, "doctor s3");
    assert!(
        String::from_utf8(out.stderr).unwrap().contains("there is no such bucket: check its name")
    );
    let out =
        kvtier_on(&server, "bucket", SECRET, "bench s3 --op put,head --size 1KiB --gb 0.0001");
    let table = String::from_utf8(out.stdout).unwrap();
    assert!(
        table.contains("ops/s") && table.lines().last().unwrap().contains(" - "),
        "a head moves no bytes: {table}"
    );
    let out = kvtier_on(&server, "bucket", "wrong-secret", "doctor s3");
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("SignatureDoesNotMatch") && !text.contains("wrong-secret"));
}

#[test]
fn doctor_prints_its_steps_where_that_is_asked_for() {
    let server = Server::start(Setup::default()).unwrap();
    let said = |words: &str| {
        String::from_utf8(kvtier_on(&server, "bucket", SECRET, words).stderr).unwrap()
    };
    let words = "doctor s3 --gb 0.002 --size 64KiB --concurrency 2";
    assert_eq!(said(words), "");
    let steps = said(&format!("{words} --progress"));
    for line in [
        "0 of 3: connecting",
        "1 of 3: probing",
        "2 of 3: measuring with 2 requests in flight",
        "3 of 3",
    ] {
        assert!(steps.contains(line), "{line}: {steps}");
    }
}

/// Waits for the command, which is let write nowhere but into a directory of its own.
fn without_credentials(server: &Server, words: &str, metadata: &str) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(words.split(' ')).args(["--endpoint", &server.url(), "--bucket", "bucket"]);
    command.env_clear().env("HOME", home.path()).env("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata);
    command.output().unwrap()
}

#[test]
fn without_credentials_no_instance_is_asked_and_the_next_step_is_said() {
    let server = Server::start(Setup::default()).unwrap();
    let metadata = Server::start(Setup::default()).unwrap();
    let out = without_credentials(&server, "bench s3", &metadata.url());
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(
        text.contains("set AWS_ACCESS_KEY_ID") && text.trim_end().lines().count() == 1,
        "{text}"
    );
    assert!(text.len() < 400, "{text}");
    assert_eq!((metadata.accepted(), server.accepted()), (0, 0));
    if cfg!(feature = "aws-config") {
        assert!(
            !without_credentials(&server, "bench s3 --instance-metadata", &metadata.url())
                .status
                .success()
        );
        assert!(metadata.accepted() > 0, "it is asked if the option is given");
    }
}

#[test]
fn a_bucket_that_does_not_exist_ends_a_replay_before_it_begins() {
    let server = Server::start(Setup::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiers.json");
    let tier = |bucket: &str| {
        serde_json::json!({"tiers": [{
            "type": "s3", "s3_endpoint": server.url(), "bucket": bucket, "s3_region": "us-east-1",
            "aws_access_key_id": "AKIDTEST", "aws_secret_access_key": SECRET,
        }]})
    };
    let replay = |bucket: &str| {
        std::fs::write(&path, tier(bucket).to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
        command
            .args(["replay", "--requests", "1", "--chunk-bytes", "64KiB", "--config"])
            .arg(&path);
        command.env_clear().output().unwrap()
    };
    let out = replay("absent");
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(
        text.contains("the bucket absent does not exist") && text.contains("create it"),
        "{text}"
    );
    assert!(
        !server.seen().iter().any(|seen| seen.method == "PUT" && !seen.target.contains(".kvtier"))
    );
    let out = replay("bucket");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
