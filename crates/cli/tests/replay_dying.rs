//! A trace replayed through memory, files and a bucket, while the bucket dies and returns, hangs
//! and returns, and the directory fails and is mended: no wrong byte, no operation that outlives
//! its deadline, hits from the tiers that are left, and from the one that is back. A generated
//! trace; with `KVTIER_TRACES` real ones too, of which more with `KVTIER_NIGHTLY`.
#![allow(clippy::unwrap_used)]
#![allow(clippy::print_stderr)]

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvtier::core::Chain;
use kvtier::evict::PolicyKind;
use kvtier::file::{FileConfig, FileTier};
use kvtier::prelude::*;
use kvtier::s3::{BucketAddress, Config, Credentials};
use kvtier::s3_tier::{Evictor, S3Tier, TierConfig};
use kvtier::{StackConfig, TierRule, Write};
use kvtier_testkit::Content;
use kvtier_testkit::s3::{Fault, Rule as Script, Server, Setup};

const LEN: usize = 16 << 10;
/// What a chunk costs the host tier, and the file tier with its footer.
const COSTS: [u64; 2] = [LEN as u64, LEN as u64 + 4096];
/// How long an operation may take.
const OP_MAX: Duration = Duration::from_secs(2);
/// How long a load or lookup may take in the bucket.
const IN_BUCKET_MAX: Duration = Duration::from_millis(200);
/// How much later that may be seen on a machine that is busy with other things: less than a
/// connection stays clogged.
const SLACK: Duration = Duration::from_secs(40);
/// Longer than any machine needs for what is waited for.
const LATE: Duration = Duration::from_secs(600);
/// Requests at once.
const WORKERS: usize = 8;
/// The most blocks of a request that are replayed.
const BLOCKS_MAX: usize = 64;

/// The tiers, the fastest first.
const HOST: usize = 0;
const FILE: usize = 1;
const S3: usize = 2;

type Request = Vec<u64>;

/// What came of some requests.
#[derive(Default)]
struct Tally {
    wrong: u64,
    errors: HashMap<ErrorKind, u64>,
    slowest: Duration,
}

struct World {
    server: Server,
    dir: tempfile::TempDir,
    stack: Stack,
    tiers: [Arc<dyn Tier>; 3],
    arena: Arena,
    ns: Arc<Namespace>,
}

impl World {
    /// Space for the given numbers of chunks in memory and in files. What is saved goes to both at once and to
    /// the bucket behind them.
    fn new(chunks: [u64; 2]) -> Self {
        let server = Server::start(Setup::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let host = HostConfig::new(chunks[HOST] * COSTS[HOST]).with_policy(PolicyKind::Lru);
        let file = FileConfig::new(dir.path().join("kv"), chunks[FILE] * COSTS[FILE])
            .with_policy(PolicyKind::Lru);
        let endpoint = BucketAddress::new(server.url())
            .bucket("bucket")
            .region("us-east-1")
            .resolve()
            .unwrap();
        let mut client = Config::new(endpoint, Credentials::new("AKIDTEST", "secret/test+key"));
        client.stall_max = Duration::from_secs(1);
        let mut bucket = TierConfig::new(client).with_capacity(1 << 30).with_prefix("kv");
        bucket.sync.evictor = Evictor::Single;
        let host: Arc<dyn Tier> = Arc::new(HostTier::open(host).unwrap());
        let file: Arc<dyn Tier> = Arc::new(FileTier::open(file).unwrap());
        let bucket: Arc<dyn Tier> = Arc::new(S3Tier::open(bucket).unwrap());
        let behind = TierRule::new().with_write(Write::Back).with_deadline(IN_BUCKET_MAX);
        let config = StackConfig::new("stack").with(Arc::clone(&host)).with(Arc::clone(&file));
        let stack = Stack::open(config.with_rule(Arc::clone(&bucket), behind)).unwrap();
        let arena = Arena::new(ArenaConfig::heap(128 << 20)).unwrap();
        let ns = Arc::new(Namespace::new("dying", Digest::derive("layout", b"dying")));
        World { server, dir, stack, tiers: [host, file, bucket], arena, ns }
    }

    fn key(&self, id: u64) -> Key {
        let hash = ChunkHash::new(Digest::derive("dying", &id.to_le_bytes()).as_bytes());
        Key::new(
            Arc::clone(&self.ns),
            KeyId::Object(ObjectKey::new("model", KvRank(0), 0, hash, "").unwrap()),
        )
    }

    fn hits(&self) -> [u64; 3] {
        [HOST, FILE, S3].map(|at| self.tiers[at].status().counter("hits"))
    }

    /// A saved chunk is also in the bucket, if the bucket accepts it.
    fn flush(&self) {
        self.stack.flush(&Ctx::within(LATE)).wait().unwrap();
    }

    /// One request: how far its prefix reaches, load that, save the rest.
    fn request(&self, ids: &[u64], tally: &Mutex<Tally>) {
        let keys: Arc<[Key]> = ids.iter().map(|id| self.key(*id)).collect();
        let ctx = Ctx::within(OP_MAX);
        let held = Hold::For(OP_MAX + SLACK);
        let found =
            timed(tally, || self.stack.lookup(&ctx, Arc::clone(&keys), Mode::Prefix, held).wait());
        let found =
            found.map_err(|e| *tally.lock().unwrap().errors.entry(e.kind()).or_default() += 1).ok();
        let promised = found.as_ref().map_or(0, LookedUp::prefix_len);
        let loaded = self.load(&keys[..promised], tally);
        let parent = loaded.checked_sub(1).map(|n| *keys[n].digest());
        let depth = loaded as u32;
        let ctx = Ctx::within(OP_MAX).with_class(Class::Write).with_chain(Chain { parent, depth });
        let ops = keys[loaded..].iter().map(|key| self.save_op(key)).collect();
        for done in timed(tally, || self.stack.save(&ctx, ops).wait()) {
            count(tally, &done.result);
        }
        found.and_then(|found| found.hold).into_iter().for_each(|hold| self.stack.release(hold));
    }

    /// Loads and looks at every byte; how many from the first are hits.
    fn load(&self, keys: &[Key], tally: &Mutex<Tally>) -> usize {
        let into =
            |key: &Key| Load { key: key.clone(), into: vec![self.arena.lease(LEN).unwrap()] };
        let ctx = Ctx::within(OP_MAX).with_chain(Chain { parent: None, depth: 0 });
        let ops = keys.iter().map(into).collect();
        let mut good = 0;
        for (at, done) in timed(tally, || self.stack.load(&ctx, ops).wait()).into_iter().enumerate()
        {
            count(tally, &done.result);
            if let Ok(Loaded::Hit { len }) = done.result {
                let bytes = done.op.into[0].as_host().unwrap();
                let right = len == LEN as u64
                    && bytes.len() == LEN
                    && Content::of(&done.op.key).check(0, bytes).is_ok();
                tally.lock().unwrap().wrong += u64::from(!right);
                good += usize::from(good == at);
            }
        }
        good
    }

    fn save_op(&self, key: &Key) -> Save {
        let mut lease = self.arena.lease(LEN).unwrap();
        Content::of(key).write(0, lease.as_host_mut().unwrap());
        lease.assume_filled(LEN);
        Save { key: key.clone(), from: vec![lease.freeze()] }
    }

    /// Replays requests, some at once; what each tier served.
    fn replay(&self, what: &str, requests: &[Request]) -> [u64; 3] {
        let tally = Mutex::new(Tally::default());
        let next = AtomicUsize::new(0);
        let before = self.hits();
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.request(request, &tally);
                    }
                });
            }
        });
        prove(what, &tally.into_inner().unwrap());
        let after = self.hits();
        let served = [HOST, FILE, S3].map(|at| after[at] - before[at]);
        eprintln!("{what}: {} requests, hits of host, files, bucket: {served:?}", requests.len());
        served
    }

    /// Replays these again and again until the tier that is back has served one of them.
    fn is_back(&self, what: &str, tier: usize, requests: &[Request]) {
        let begun = Instant::now();
        let before = self.hits()[tier];
        let tally = Mutex::new(Tally::default());
        for request in requests.iter().cycle() {
            self.request(request, &tally);
            if self.hits()[tier] > before {
                break;
            }
            assert!(
                begun.elapsed() < LATE,
                "{what}: no hit after {:?}: {:?}",
                begun.elapsed(),
                self.stack.status()
            );
        }
        prove(what, &tally.into_inner().unwrap());
        eprintln!("{what}: hits after {:?}", begun.elapsed());
    }

    /// From now on every request to the bucket meets this, and its connections are gone.
    fn kill_bucket(&self, fault: Fault) {
        self.server.script(Script::next(fault).times(u32::MAX));
        self.server.disconnect();
    }

    fn away(&self) -> PathBuf {
        self.dir.path().join("away")
    }

    /// Where the folders of the directory's chunks were are plain files: nothing can be opened or
    /// given a name.
    fn break_directory(&self) {
        fs::create_dir(self.away()).unwrap();
        for folder in folders(&self.dir.path().join("kv")) {
            fs::rename(&folder, self.away().join(folder.file_name().unwrap())).unwrap();
            fs::write(&folder, "no folder").unwrap();
        }
    }

    fn mend_directory(&self) {
        for folder in folders(&self.away()) {
            let there = self.dir.path().join("kv").join(folder.file_name().unwrap());
            // The tier may have made the folder again, and may be saving into it.
            while fs::rename(&folder, &there).is_err() {
                drop(fs::remove_file(&there).or_else(|_| fs::remove_dir_all(&there)));
            }
        }
    }
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().is_some_and(|name| name != ".kvtier")).collect()
}

/// Notes how long an operation took.
fn timed<T>(tally: &Mutex<Tally>, op: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let answer = op();
    let mut tally = tally.lock().unwrap();
    tally.slowest = tally.slowest.max(begun.elapsed());
    answer
}

fn count<T>(tally: &Mutex<Tally>, result: &Result<T, kvtier::core::Error>) {
    if let Err(e) = result {
        *tally.lock().unwrap().errors.entry(e.kind()).or_default() += 1;
    }
}

/// No wrong byte, nothing beyond its deadline, and no error but that a deadline came while a dead
/// tier had the memory.
fn prove(what: &str, tally: &Tally) {
    assert_eq!(tally.wrong, 0, "{what}: chunks with wrong bytes");
    assert!(tally.slowest < OP_MAX + SLACK, "{what}: an operation took {:?}", tally.slowest);
    assert!(
        tally.errors.keys().all(|kind| *kind == ErrorKind::Timeout),
        "{what}: {:?}",
        tally.errors
    );
}

/// The newest requests, from the newest on, that together have more chunks than memory holds and
/// fewer than the files do.
fn newest(requests: &[Request], host: u64) -> Vec<Request> {
    let mut chunks = HashSet::<u64>::new();
    let mut some = Vec::new();
    for request in requests.iter().rev() {
        chunks.extend(request);
        some.push(request.clone());
        if chunks.len() as u64 > 2 * host {
            break;
        }
    }
    some
}

/// Everything that the head of this file says, with a trace.
fn survives(name: &str, trace: &[Request]) {
    let distinct = trace.iter().flatten().collect::<HashSet<_>>().len() as u64;
    let chunks = [distinct / 20, distinct / 5];
    let world = World::new(chunks);
    let part = |from: usize, to: usize| &trace[trace.len() * from / 10..trace.len() * to / 10];
    let what = |text: &str| format!("{name}, {text}");

    let served = world.replay(&what("all is well"), part(0, 4));
    assert!(
        served[HOST] + served[FILE] > 0 && served[S3] > 0,
        "{name}: hits above and below: {served:?}"
    );
    world.flush();
    for (at, fault) in [(4, Fault::Hangup), (5, Fault::Clog)] {
        world.kill_bucket(fault.clone());
        let served =
            world.replay(&what(&format!("the bucket is dead: {fault:?}")), part(at, at + 1));
        assert!(served[HOST] + served[FILE] > 0, "{name}: the others serve on: {served:?}");
        assert_eq!(served[S3], 0, "{name}: it was dead");
        world.server.heal();
        // More than memory and files hold: some of it only the bucket has.
        world.is_back(&what("the bucket is back"), S3, part(0, at));
    }
    world.replay(&what("all is well again"), part(6, 7));
    world.flush();

    world.break_directory();
    let served = world.replay(&what("the directory fails"), part(7, 8));
    assert!(served[HOST] + served[S3] > 0, "{name}: the others serve on: {served:?}");
    // Whatever it serves was saved since: a tier makes folders again that are none, within seconds.
    assert!(served[FILE] < served[HOST] + served[S3], "{name}: it failed: {served:?}");
    world.mend_directory();
    world.is_back(&what("the directory is back"), FILE, &newest(part(0, 7), chunks[HOST]));
    let served = world.replay(&what("all is well in the end"), part(8, 10));
    assert!(served.iter().all(|hits| *hits > 0), "{name}: hits of all tiers: {served:?}");

    assert!(world.tiers.iter().all(|tier| tier.status().healthy));
    world.stack.close().wait().unwrap();
    let end = Instant::now() + LATE;
    let stats = || world.arena.stats();
    while stats().free != stats().capacity {
        assert!(Instant::now() < end, "{name}: memory is not home: {:?}", stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[derive(serde::Deserialize)]
struct Line {
    hash_ids: Request,
}

fn json_lines(text: &str, max: usize) -> Vec<Request> {
    text.lines()
        .take(max)
        .map(|line| cut(serde_json::from_str::<Line>(line).unwrap().hash_ids))
        .collect()
}

fn cut(mut blocks: Request) -> Request {
    blocks.truncate(BLOCKS_MAX);
    blocks
}

/// The binary form: number of requests, tokens of a block; for each time, session, flags, number of
/// blocks and the blocks.
fn binary(file: fs::File, max: usize) -> Vec<Request> {
    let mut file = zstd::Decoder::new(file).unwrap();
    file.window_log_max(27).unwrap();
    let mut word = || {
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    };
    let count = word() as usize;
    let _tokens = word();
    let mut request = || {
        let [_time, _more_time, _session, _flags, blocks] = std::array::from_fn(|_| word());
        cut((0..blocks).map(|_| word().into()).collect())
    };
    (0..count.min(max)).map(|_| request()).collect()
}

#[test]
fn a_generated_trace_survives_a_bucket_that_dies_and_a_directory_that_fails() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    let out =
        command.args(["gen-trace", "chat", "--requests", "300", "--seed", "7"]).output().unwrap();
    assert!(out.status.success());
    survives("chat", &json_lines(std::str::from_utf8(&out.stdout).unwrap(), usize::MAX));
}

#[test]
fn real_traces_survive_them_too() {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let Some(folder) = var("KVTIER_TRACES").map(PathBuf::from) else {
        return eprintln!("skipped: KVTIER_TRACES names no folder with traces");
    };
    let max = if var("KVTIER_NIGHTLY").is_some() { 3000 } else { 300 };
    let mut traces = 0;
    for name in ["conv_a.jsonl", "convA.bin.zst", "ccA.bin.zst"] {
        let Ok(file) = fs::File::open(folder.join(name)) else { continue };
        let trace = match name.ends_with(".jsonl") {
            true => json_lines(&fs::read_to_string(folder.join(name)).unwrap(), max),
            false => binary(file, max),
        };
        survives(name, &trace);
        traces += 1;
    }
    assert!(traces > 0, "{} has no trace", folder.display());
}
