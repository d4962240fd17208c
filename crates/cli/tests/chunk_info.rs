//! `ls --long` and `stat --by`, over a directory and a bucket.
#![allow(clippy::unwrap_used)]

mod places;
mod support;

use std::fs;
use std::time::SystemTime;

use kvtier::file::Layout;
use kvtier_testkit::s3::{Server, Setup};
use places::{Bucket, CHUNKS, Dir, LEN, Place, count, kvtier, lines, ok, places};
use serde_json::Value;
use support::kvtier_on;

#[test]
fn ls_long_shows_model_tenant_age_and_last_use_and_never_a_salt() {
    for place in places() {
        place.age_model_a();
        let name = place.name();
        let text = ok(place.run(&["ls", &name, "--long"]));
        assert_eq!(text.lines().count(), 1 + CHUNKS.len(), "{text}");
        assert!(
            text.lines().next().unwrap().contains("MODEL KEY") && !text.contains("pepper"),
            "{text}"
        );
        let found = lines(&ok(place.run(&["ls", &name, "--long", "--json"])));
        for chunk in &CHUNKS {
            let digest = chunk.key().digest().to_hex();
            let one = found.iter().find(|one| one["key"] == digest.as_str()).unwrap();
            assert_eq!((&one["model"], &one["bytes"]), (&chunk.model.into(), &LEN.into()), "{one}");
            assert_eq!(one["namespace"], chunk.key().namespace().digest().to_hex());
            let salt = kvtier::key::KeySummary::from_canonical(&chunk.key().canonical())
                .unwrap()
                .salt_digest;
            let digits = salt.map(|digest| {
                digest[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
            });
            // The tenant of a key without a salt is in the journals, which a copy into a bucket
            // does not write.
            assert!(digits.is_none_or(|digits| one["tenant"] == digits.as_str()), "{one}");
            let line = text.lines().find(|line| line.ends_with(&digest)).unwrap();
            assert!(
                line.contains(chunk.model) && (chunk.model == "org/b" || line.contains(" 10d ")),
                "{line}"
            );
        }
    }
}

#[test]
fn the_last_use_is_what_the_journals_of_a_directory_say() {
    let dir = Dir::filled(Layout::Kvtier);
    let found = lines(&ok(kvtier(&["ls", &dir.name(), "--long", "--json"])));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    for one in &found {
        let used = one["used_s"].as_u64().unwrap();
        assert!(used <= now && now - used < 3600, "{one}");
        assert_eq!(one["tenant"].as_str().unwrap().len(), 32, "{one}");
    }
    fs::remove_dir_all(dir.path().join(".kvtier/journal")).unwrap();
    let _ = fs::remove_file(dir.path().join(".kvtier/snapshot"));
    let found = lines(&ok(kvtier(&["ls", &dir.name(), "--long", "--json"])));
    assert!(
        found.iter().all(|one| one["used_s"].is_null() && one["used_exact"].is_null()),
        "{found:?}"
    );
}

#[test]
fn the_last_use_in_a_bucket_is_what_its_nodes_wrote() {
    let server = Server::start(Setup::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("kv.json");
    let tier = serde_json::json!({
        "type": "s3", "s3_endpoint": "s3://bucket", "s3_region": "us-east-1", "prefix": "kv", "max_capacity_gb": 1,
    });
    let host = serde_json::json!({"type": "host", "bytes": "1MiB"});
    fs::write(&config, serde_json::json!({"tiers": [host, tier]}).to_string()).unwrap();
    let path = config.display().to_string();
    ok(kvtier_on(
        &server,
        &["replay", "--config", &path, "--requests", "5", "--chunk-bytes", "4096"],
    ));
    let found = lines(&ok(kvtier_on(&server, &["ls", "s3://bucket/kv", "--long", "--json"])));
    let keys = server.keys("kv/.kvtier/");
    assert!(!found.is_empty(), "{keys:?}");
    for one in found {
        assert!(one["used_s"].as_i64().is_some_and(|used| used > 0), "{one} {keys:?}");
        assert!(one["tenant"].as_str().is_some_and(|tenant| tenant.len() == 32), "{one}");
    }
}

#[test]
fn damaged_journals_of_a_bucket_cost_last_uses_and_nothing_else() {
    let bucket = Bucket::filled();
    let server = &bucket.0;
    let name = |n: usize| format!("kv/.kvtier/journal/node/{n:08x}");
    server.put_object(&name(1), b"no journal".to_vec());
    server.put_object(&name(2), vec![0; 9 << 20]);
    let list = ["ls", "s3://bucket/kv", "--long"];
    let out = kvtier_on(server, &list);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(ok(out).lines().count(), CHUNKS.len() + 1, "with a head");
    let first =
        format!("some last uses are missing: {} is damaged from byte 0 on (and 1 more)", name(1));
    assert!(said.contains(&first), "{said}");
    // What does not need last uses does not read them.
    let gets = || server.seen().iter().filter(|request| request.target.contains("journal")).count();
    let before = gets();
    let rm = ["rm", "s3://bucket/kv", "--model", "org/a", "--older", "0s"];
    let by = |what| ["stat", "s3://bucket/kv", "--by", what];
    for words in [&rm[..], &by("model"), &by("namespace")] {
        let out = kvtier_on(server, words);
        assert!(out.stderr.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        ok(out);
    }
    assert_eq!(gets(), before);
    ok(kvtier_on(server, &by("tenant")));
    assert!(gets() > before, "which tenant it is, journals say");
}

#[test]
fn a_directory_without_readable_journals_is_still_chosen_from_by_model() {
    let dir = Dir::filled(Layout::Kvtier);
    let journals = dir.path().join(".kvtier/journal");
    fs::remove_dir_all(&journals).unwrap();
    fs::write(&journals, "").unwrap();
    ok(kvtier(&["ls", &dir.name(), "--long"]));
    ok(kvtier(&["rm", &dir.name(), "--model", "org/a", "--yes"]));
    ok(kvtier(&["stat", &dir.name(), "--by", "model"]));
    assert_eq!(count(&dir), 2);
}

#[test]
fn a_foreign_layout_shows_what_its_names_and_facts_say() {
    let dir = Dir::filled(Layout::LmcacheMp);
    let text = ok(kvtier(&["ls", &dir.name(), "--long", "--json"]));
    let found = lines(&text);
    let of = |model: &str| found.iter().filter(|one| one["model"] == model).count();
    assert_eq!((of("org/a"), of("org/b")), (3, 2), "{text}");
    // Without facts, as another program writes files, the namespace is not known.
    for entry in fs::read_dir(dir.path()).unwrap().flatten().filter(|entry| entry.path().is_file())
    {
        let bytes = fs::read(entry.path()).unwrap();
        fs::remove_file(entry.path()).unwrap();
        fs::write(entry.path(), bytes).unwrap();
    }
    let text = ok(kvtier(&["ls", &dir.name(), "--long", "--json"]));
    let found = lines(&text);
    assert!(
        found.iter().all(|one| one["namespace"].is_null() && one["model"].is_string()),
        "{text}"
    );
    assert!(
        !found
            .iter()
            .filter_map(|one| one["tenant"].as_str())
            .any(|tenant| tenant.contains("pepper")),
        "{text}"
    );
}

#[test]
fn stat_by_sums_chunks_up() {
    for place in places() {
        let name = place.name();
        let by = |by: &str| -> Value {
            serde_json::from_str(&ok(place.run(&["stat", &name, "--by", by, "--json"]))).unwrap()
        };
        let models = by("model");
        let expected = serde_json::json!([
            {"name": "org/a", "chunks": 3, "bytes": 3 * LEN}, {"name": "org/b", "chunks": 2, "bytes": 2 * LEN},
        ]);
        assert_eq!((&models["by"], &models["groups"]), (&"model".into(), &expected));
        assert_eq!(by("tenant")["groups"].as_array().unwrap().len(), 2);
        let namespace = CHUNKS[0].key().namespace().digest().to_hex();
        assert_eq!(
            by("namespace")["groups"][0],
            serde_json::json!({"name": namespace, "chunks": 5, "bytes": 5 * LEN})
        );
        let table = ok(place.run(&["stat", &name, "--by", "model"]));
        assert!(
            table.starts_with("model  chunks") && table.contains("org/a       3  12 KiB"),
            "{table}"
        );
    }
}
