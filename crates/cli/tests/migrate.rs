//! LMCache's directories looked at from outside, and chunks brought from layout to layout.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn kvtier(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtier")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(output)))
}

#[path = "../../testkit/tests/vectors/load.rs"]
mod load;

/// A directory as LMCache's adapter `fs` leaves it: three chunks, one of them with a salt.
fn lmcache(dir: &Path) -> (String, BTreeMap<String, Vec<u8>>) {
    let files = [
        ("org-SEP-m@0x02010201@0@00010203.data", b"hello world".to_vec()),
        ("org-SEP-m@0x02010201@0@02010203@s.data", vec![b'x'; 100]),
        ("org-SEP-m@0x02010201@1@01010203.data", (0..64).collect()),
    ];
    let files = files.map(|(name, bytes)| (name.to_owned(), bytes)).into();
    (written(dir, &files), files)
}

fn written(dir: &Path, files: &BTreeMap<String, Vec<u8>>) -> String {
    let path = dir.join("theirs");
    fs::create_dir(&path).unwrap();
    files.iter().for_each(|(name, bytes)| fs::write(path.join(name), bytes).unwrap());
    path.to_str().unwrap().to_owned()
}

/// What LMCache's own adapters wrote is listed, counted, and copied byte for byte.
#[test]
fn directories_that_lmcache_wrote_are_read_and_copied() {
    let unhex = |hex: &str| -> Vec<u8> {
        hex.as_bytes()
            .chunks(2)
            .map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap())
            .collect()
    };
    for case in load::cases("fs_files.json") {
        if !["fs", "fs_native"].iter().any(|adapter| case["in"]["adapter"] == *adapter) {
            continue;
        }
        let files_of_it = case["out"]["files"].as_object().unwrap();
        let theirs: BTreeMap<String, Vec<u8>> = files_of_it
            .iter()
            .map(|(name, hex)| (name.clone(), unhex(hex.as_str().unwrap())))
            .collect();
        let bytes: usize = theirs.values().map(Vec::len).sum();
        assert_eq!(case["out"]["store_bytes"], bytes, "{}", case["in"]);
        let dir = tempfile::tempdir().unwrap();
        let from = written(dir.path(), &theirs);
        let to = dir.path().join("copy").to_str().unwrap().to_owned();
        let stat = json_of(&kvtier(&["stat", &from, "--layout", "lmcache-mp", "--json"]));
        assert_eq!((&stat["chunks"], &stat["bytes"]), (&json!(theirs.len()), &json!(bytes)));
        let out =
            kvtier(&["migrate", &from, &to, "--to-layout", "lmcache-mp", "--unverified", "--json"]);
        assert_eq!(json_of(&out)["copied"], theirs.len(), "{}", text(&out));
        assert_eq!(files(&to), theirs);
    }
}

fn files(dir: &str) -> BTreeMap<String, Vec<u8>> {
    let all = fs::read_dir(dir).unwrap().flatten().filter(|file| file.file_name() != ".kvtier");
    all.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()))
        .collect()
}

#[test]
fn a_directory_of_lmcache_is_listed_summed_up_verified_and_emptied() {
    let dir = tempfile::tempdir().unwrap();
    let (path, theirs) = lmcache(dir.path());
    fs::write(Path::new(&path).join("notes.txt"), "mine").unwrap();
    let listed = kvtier(&["ls", &path]);
    assert!(text(&listed).contains("layout lmcache-mp"), "{}", text(&listed));
    let lines: Vec<String> =
        theirs.iter().map(|(name, bytes)| format!("{name} {}", bytes.len())).collect();
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().collect::<Vec<_>>(), lines);
    let stat = json_of(&kvtier(&["stat", &path, "--layout", "lmcache-mp", "--json"]));
    let bytes: usize = theirs.values().map(Vec::len).sum();
    assert_eq!((&stat["chunks"], &stat["bytes"]), (&json!(theirs.len()), &json!(bytes)));
    assert_eq!(stat["strangers"].as_array().unwrap().len(), 1);
    let verified = kvtier(&["verify", &path, "--json"]);
    assert!(verified.status.success());
    assert_eq!(json_of(&verified)["unverified"], theirs.len());
    let first = theirs.keys().next().unwrap();
    assert_eq!(kvtier(&["rm", &path, "--key", "nothing", "--yes"]).status.code(), Some(2));
    assert!(kvtier(&["rm", &path, "--key", first, "--yes"]).status.success());
    assert_eq!(files(&path).len(), theirs.len());
    assert!(kvtier(&["rm", &path, "--all", "--yes"]).status.success());
    assert_eq!(files(&path).keys().collect::<Vec<_>>(), ["notes.txt"]);
    assert!(!Path::new(&path).join(".kvtier").exists(), "looking leaves nothing behind");
}

/// All files below a directory, but for those of our own affairs, by their paths.
fn files_below(dir: &Path, before: &str) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().flatten().filter(|file| file.file_name() != ".kvtier") {
        let name = format!("{before}{}", entry.file_name().into_string().unwrap());
        match entry.path() {
            path if path.is_dir() => all.extend(files_below(&path, &format!("{name}/"))),
            path => drop(all.insert(name, fs::read(path).unwrap())),
        }
    }
    all
}

#[test]
fn a_directory_of_lmcaches_gds_backend_goes_into_ours_and_out_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let theirs = path("theirs");
    let ours = path("ours");
    let back = path("back");
    // Two chunks of 16 and of 3 tokens of 2 x 2 x 8 elements of 2 bytes.
    for (name, tokens) in [
        ("18/85/org%2Fm%401%400%401a2b3c4d5e6f7788%40bfloat16", 16),
        ("5/m%401%400%405%40bfloat16", 3),
    ] {
        let bytes = tokens * 64;
        let text = format!(
            r#"{{"kvcache": {{"dtype": "BF16", "shape": [2, 2, {tokens}, 8], "data_offsets": [0, {bytes}], "fmt": 1, "__metadata__": {{"lmcache_version": "1"}}}}}}"#
        );
        let header = [&4088_u64.to_le_bytes()[..], format!("{text:<4088}").as_bytes()].concat();
        let file = Path::new(&theirs).join(format!("{name}.kvcache.safetensors"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let payload: Vec<u8> = (0..bytes).map(|n| (n * 7 + tokens) as u8).collect();
        fs::write(&file, [&header[..], &payload].concat()).unwrap();
        fs::write(format!("{}.metadata", file.display()), &header).unwrap();
    }
    let stat = json_of(&kvtier(&["stat", &theirs, "--json"]));
    assert_eq!(
        (&stat["layout"], &stat["chunks"], &stat["payload_bytes"]),
        (&json!("lmcache-gds"), &json!(2), &json!(19 * 64))
    );
    assert_eq!(stat["strangers"].as_array().unwrap().len(), 0);
    assert_eq!(json_of(&kvtier(&["verify", &theirs, "--json"]))["unverified"], 2);
    let out = kvtier(&["migrate", &theirs, &ours, "--unverified", "--bytes", "1GiB", "--json"]);
    assert_eq!(json_of(&out)["copied"], 2, "{}", text(&out));
    // Out again they need a shape, which our files do not say.
    let to = ["migrate", &ours, &back, "--to-layout", "lmcache-gds"];
    let wrong = kvtier(&[&to[..], &["--shape", "large"]].concat());
    assert!(wrong.status.code() == Some(2) && text(&wrong).contains("--shape"), "{}", text(&wrong));
    let out = kvtier(&[&to[..], &["--shape", "2x2x16x8", "--json"]].concat());
    assert_eq!(json_of(&out)["copied"], 2, "{}", text(&out));
    assert_eq!(files_below(Path::new(&back), ""), files_below(Path::new(&theirs), ""));
    assert_eq!(
        json_of(&kvtier(&["verify", &back, "--json"]))["unverified"],
        0,
        "what we write has facts"
    );
    assert!(!Path::new(&theirs).join(".kvtier").exists(), "the source is not touched");
}

#[test]
fn chunks_go_from_layout_to_layout_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let (theirs, before) = lmcache(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let ours = path("ours");
    let copy = path("copy");
    let back = path("back");
    let dry = kvtier(&["migrate", &theirs, &ours, "--unverified", "--dry-run"]);
    assert!(dry.status.success() && text(&dry).contains("would copy 3 chunks"), "{}", text(&dry));
    assert!(!Path::new(&ours).exists());

    let out = kvtier(&["migrate", &theirs, &ours, "--unverified", "--bytes", "1GiB", "--json"]);
    assert!(out.status.success(), "{}", text(&out));
    let tally = json_of(&out);
    assert_eq!(
        (&tally["copied"], &tally["unverified"], &tally["copied_bytes"]),
        (&json!(3), &json!(3), &json!(175))
    );
    assert_eq!(
        (&tally["from_layout"], &tally["to_layout"]),
        (&json!("lmcache-mp"), &json!("kvtier"))
    );
    assert!(kvtier(&["verify", &ours]).status.success());
    let again = json_of(&kvtier(&["migrate", &theirs, &ours, "--unverified", "--json"]));
    assert_eq!((&again["copied"], &again["present"]), (&json!(0), &json!(3)));

    // The salt of one key is kept as a digest only: its name cannot be made again.
    let out = kvtier(&["migrate", &ours, &back, "--to-layout", "lmcache-mp", "--json"]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    let tally = json_of(&out);
    assert_eq!(
        (&tally["copied"], &tally["unverified"], &tally["unsupported"]),
        (&json!(2), &json!(0), &json!(1))
    );
    assert!(tally["unsupported_why"].as_str().unwrap().contains("salt"));
    let mut expected = before.clone();
    expected.retain(|name, _| !name.ends_with("@s.data"));
    assert_eq!(files(&back), expected);
    let verified = json_of(&kvtier(&["verify", &back, "--json"]));
    assert_eq!(
        (&verified["chunks"], &verified["unverified"]),
        (&json!(2), &json!(0)),
        "what we write has facts"
    );

    let out = kvtier(&["migrate", &theirs, &copy, "--to-layout", "lmcache-mp", "--unverified"]);
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!((files(&copy), files(&theirs)), (before.clone(), before));
    assert!(!Path::new(&theirs).join(".kvtier").exists(), "the source is not touched");
}

#[test]
fn what_is_damaged_or_has_no_name_stays_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (theirs, before) = lmcache(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let ours = path("ours");
    let mp = path("mp");
    let other = path("other");
    let migrate = |from: &str, to: &str, layout: &str| {
        kvtier(&["migrate", from, to, "--to-layout", layout, "--json", "--unverified"])
    };
    let out = migrate(&theirs, &mp, "lmcache-mp");
    assert!(out.status.success(), "{}", text(&out));
    let first = Path::new(&mp).join(before.keys().next().unwrap());
    let mut bytes = fs::read(&first).unwrap();
    bytes[0] ^= 1;
    fs::write(&first, bytes).unwrap();
    let out = migrate(&mp, &ours, "kvtier");
    assert_eq!(
        (out.status.code(), &json_of(&out)["damaged"]),
        (Some(1), &json!(1)),
        "{}",
        text(&out)
    );
    assert_eq!(json_of(&kvtier(&["stat", &ours, "--json"]))["chunks"], 2);
    let out = kvtier(&["verify", &mp, "--set-aside", "--json"]);
    assert_eq!(
        (out.status.code(), json_of(&out)["damaged"].as_array().unwrap().len()),
        (Some(1), 1)
    );
    assert!(!first.exists());
    // Keys of the multi-process mode have no names in the layout of the other.
    let out = migrate(&theirs, &other, "lmcache");
    assert_eq!((out.status.code(), &json_of(&out)["unsupported"]), (Some(1), &json!(3)));
    assert!(!Path::new(&other).exists());
    // What cannot fit is said before anything is copied, and so are layouts that do not agree.
    let out = kvtier(&["migrate", &theirs, &other, "--bytes", "16KiB", "--unverified"]);
    assert!(out.status.code() == Some(2) && text(&out).contains("raise --bytes"), "{}", text(&out));
    assert_eq!(migrate(&theirs, &ours, "lmcache-mp").status.code(), Some(2));
    assert_eq!(migrate(&theirs, &theirs, "lmcache-mp").status.code(), Some(2));
}

/// A save claims the rest of its last page until its file is written.
#[test]
fn a_cap_that_is_accepted_has_space_for_what_is_written_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (theirs, files) = lmcache(dir.path());
    let least: usize = files.values().map(|bytes| bytes.len() + 4095).sum();
    for (cap, code) in [(least - 1, 2), (least, 0)] {
        let to = dir.path().join(cap.to_string());
        let cap = format!("--bytes={cap}");
        let to_layout = ["--to-layout", "lmcache-mp", "--unverified"];
        let out =
            kvtier(&[&["migrate", &theirs, to.to_str().unwrap(), &cap], &to_layout[..]].concat());
        assert_eq!(out.status.code(), Some(code), "{}", text(&out));
        let copied = files
            .iter()
            .filter(|(name, bytes)| fs::read(to.join(name)).is_ok_and(|there| there == **bytes));
        assert_eq!(copied.count(), if code == 0 { files.len() } else { 0 });
    }
}

#[test]
fn what_nothing_proves_is_copied_only_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (theirs, before) = lmcache(dir.path());
    let whole: Vec<u8> = (0..100_000).map(|n| (n % 251 + 1) as u8).collect();
    let zeros = |len: usize| [whole.clone(), vec![0; len - whole.len()]].concat();
    // Torn, whole, and whole but filled to the next 4096.
    let contents =
        [whole[..50_000].to_vec(), whole.clone(), zeros(100_000_usize.next_multiple_of(4096))];
    before
        .keys()
        .zip(&contents)
        .for_each(|(name, bytes)| fs::write(Path::new(&theirs).join(name), bytes).unwrap());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let migrate = |to: &str, more: &[&str]| {
        let out = kvtier(&[&["migrate", &theirs, &path(to), "--json"], more].concat());
        let tally = json_of(&out);
        (
            out.status.code().unwrap(),
            ["copied", "unverified", "left_behind"].map(|name| tally[name].as_u64().unwrap()),
        )
    };
    assert_eq!(migrate("none", &[]), (1, [0, 3, 3]));
    assert!(!dir.path().join("none").exists());
    assert!(text(&kvtier(&["migrate", &theirs, &path("none")])).contains("--unverified"));
    assert_eq!(migrate("all", &["--unverified"]), (0, [3, 3, 0]));
    let exact = ["--unverified", "--chunk-bytes", "100000"];
    assert_eq!(migrate("exact", &exact), (1, [2, 3, 1]));
    let listed = text(&kvtier(&["ls", &path("exact")]));
    assert!(listed.lines().all(|line| line.ends_with(" 100000")), "{listed}");
    assert_eq!(migrate("partial", &[&exact[..], &["--partial"]].concat()), (0, [3, 3, 0]));
    // What was filled with anything but zeros is not of that length.
    let mut bytes = contents[2].clone();
    bytes[100_001] = 1;
    fs::write(Path::new(&theirs).join(before.keys().nth(2).unwrap()), bytes).unwrap();
    assert_eq!(migrate("filled", &exact), (1, [1, 3, 2]));
}

#[test]
fn a_dry_run_leaves_the_target_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (theirs, before) = lmcache(dir.path());
    let to = dir.path().join("ours").to_str().unwrap().to_owned();
    assert!(kvtier(&["migrate", &theirs, &to, "--unverified", "--bytes", "1GiB"]).status.success());
    let manifest = || fs::read(Path::new(&to).join(".kvtier/manifest")).unwrap();
    let noted = manifest();
    let out = kvtier(&[
        "migrate",
        &theirs,
        &to,
        "--unverified",
        "--bytes",
        "2GiB",
        "--dry-run",
        "--json",
    ]);
    assert!(out.status.success(), "{}", text(&out));
    let tally = json_of(&out);
    assert_eq!((&tally["copied"], &tally["present"]), (&json!(0), &json!(before.len())));
    assert_eq!(manifest(), noted);
}

#[test]
fn a_quarantine_is_made_where_no_tier_was() {
    let dir = tempfile::tempdir().unwrap();
    let (theirs, before) = lmcache(dir.path());
    let copy = dir.path().join("copy").to_str().unwrap().to_owned();
    assert!(
        kvtier(&["migrate", &theirs, &copy, "--to-layout", "lmcache-mp", "--unverified"])
            .status
            .success()
    );
    // With facts, and nothing of ours beside them.
    fs::remove_dir_all(Path::new(&copy).join(".kvtier")).unwrap();
    let first = Path::new(&copy).join(before.keys().next().unwrap());
    let mut bytes = fs::read(&first).unwrap();
    bytes[0] ^= 1;
    fs::write(&first, bytes).unwrap();
    assert_eq!(kvtier(&["verify", &copy, "--set-aside"]).status.code(), Some(1));
    assert!(!first.exists());
    assert!(kvtier(&["verify", &copy]).status.success());
    let stat = json_of(&kvtier(&["stat", &copy, "--json"]));
    assert_eq!(
        (&stat["chunks"], &stat["quarantine"].as_array().unwrap().len()),
        (&json!(before.len() - 1), &1)
    );
    let out = kvtier(&["migrate", &theirs, &copy, "--unverified", "--json"]);
    assert!(out.status.success(), "{}", text(&out));
}

/// The directory of format 2 of the file tier's tests.
fn of_format_2(dir: &Path) -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../file/tests/golden/format-2/kvtier");
    let copy = dir.join("older");
    assert!(Command::new("cp").arg("-a").args([&golden, &copy]).status().unwrap().success());
    copy.to_str().unwrap().to_owned()
}

#[test]
fn a_directory_of_an_earlier_format_is_upgraded_in_place_and_readable_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = of_format_2(dir.path());
    let copy = dir.path().join("copy").to_str().unwrap().to_owned();
    for words in [&["stat", &path][..], &["verify", &path], &["migrate", &path, &copy]] {
        assert!(kvtier(words).status.success(), "{words:?}");
    }
    for words in [&["rm", &path, "--all", "--yes"][..], &["migrate", &copy, &path]] {
        let out = kvtier(words);
        assert!(!out.status.success(), "{words:?}: {}", text(&out));
        assert!(text(&out).contains(&format!("run `kvtier migrate {path}`")), "{}", text(&out));
    }
    assert_eq!(json_of(&kvtier(&["stat", &path, "--json"]))["chunks"], 6);
    let formats = |words: &[&str]| {
        let out = kvtier(&[&["migrate", &path, "--json"][..], words].concat());
        assert!(out.status.success(), "{}", text(&out));
        let done = json_of(&out);
        assert_eq!(done["layout"], "kvtier");
        (done["from_format"].as_u64().unwrap(), done["to_format"].as_u64().unwrap())
    };
    assert_eq!(formats(&["--dry-run"]), (2, 3));
    assert_eq!(formats(&[]), (2, 3));
    assert_eq!(formats(&[]), (3, 3));
    assert_eq!(json_of(&kvtier(&["migrate", &copy, &path, "--json"]))["present"], 6);
    assert!(kvtier(&["rm", &path, "--all", "--yes"]).status.success());
}

#[test]
fn an_upgrade_takes_no_options_of_a_copy_and_no_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let path = of_format_2(dir.path());
    for words in [&["--to-layout", "kvtier"][..], &["--include", "*"], &["--bwlimit", "1MiB"]] {
        let out = kvtier(&[&["migrate", &path][..], words].concat());
        assert_eq!(out.status.code(), Some(2));
        assert!(text(&out).contains("name TO"), "{}", text(&out));
    }
    let out = kvtier(&["migrate", "s3://bucket/kv"]);
    assert!(out.status.code() == Some(2) && text(&out).contains("needs no upgrade"));
    let out = kvtier(&["migrate", dir.path().to_str().unwrap()]);
    assert!(out.status.code() == Some(2) && text(&out).contains("no .kvtier/manifest"));
    // A process has it open.
    let alive = fs::read_dir(format!("{path}/.kvtier/tmp")).unwrap().next().unwrap().unwrap();
    let held = fs::File::open(alive.path().join("alive")).unwrap();
    held.lock().unwrap();
    let out = kvtier(&["migrate", &path]);
    assert!(out.status.code() == Some(2) && text(&out).contains("stop them"), "{}", text(&out));
}

#[test]
fn a_directory_of_vllm_is_listed_verified_and_copied_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (theirs, ours, back) = (path("theirs"), path("ours"), path("back"));
    let mut chunks = BTreeMap::new();
    for case in load::cases("vllm_fs.json") {
        for name in case["out"]["names"].as_array().unwrap() {
            let name = name["name"].as_str().unwrap().to_owned();
            let payload = name.bytes().cycle().take(4096).collect::<Vec<u8>>();
            let file = Path::new(&theirs).join(&name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, &payload).unwrap();
            chunks.insert(name, payload);
        }
        let config = Path::new(&theirs).join(case["out"]["config_path"].as_str().unwrap());
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        fs::write(config, case["out"]["config"].as_str().unwrap()).unwrap();
    }
    let count = chunks.len();
    let listed = kvtier(&["ls", &theirs]);
    assert!(text(&listed).contains("layout vllm-fs"), "{}", text(&listed));
    let stat = json_of(&kvtier(&["stat", &theirs, "--layout", "vllm-fs", "--json"]));
    assert_eq!((&stat["chunks"], &stat["bytes"]), (&json!(count), &json!(4096 * count)));
    assert_eq!(json_of(&kvtier(&["verify", &theirs, "--json"]))["unverified"], count);
    let copy = |words: &[&str]| {
        let out = kvtier(&[&["migrate"], words, &["--bytes", "1GiB", "--json"]].concat());
        assert!(out.status.success(), "{}", text(&out));
        json_of(&out)["copied"].clone()
    };
    assert_eq!(copy(&[&theirs, &ours, "--unverified", "--chunk-bytes", "4KiB"]), count);
    assert_eq!(copy(&[&ours, &back, "--to-layout", "vllm-fs"]), count);
    assert_eq!(files_below(Path::new(&back), ""), chunks);
    let verified = json_of(&kvtier(&["verify", &back, "--json"]));
    assert_eq!((&verified["unverified"], &verified["damaged"]), (&json!(0), &json!([])));
    // A path explains the key, with facts and without.
    for (name, root) in chunks.keys().zip([&theirs, &back].into_iter().cycle()) {
        let explained = kvtier(&["key", &format!("{root}/{name}")]);
        assert!(text(&explained).contains("vllm-fs"), "{}", text(&explained));
    }
}
