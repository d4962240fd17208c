//! The stage `aes-256-gcm` beside the cipher of its library alone, in slices of milliseconds that take
//! turns in one thread, so that what else the machine does meets both.
//!
//! Both read and write the same memory with the same key. The stage does its whole work: it finds the
//! tenant's key, draws a nonce, writes the header and covers it with the tag. The library encrypts with
//! a nonce that it draws, as chunks need it, and once more with the same nonce each time, which is
//! only safe in a benchmark. The times are CPU times of the thread.
//!
//! `cargo bench -p kvtier-codec --bench aes_gcm` prints a table. With `-- --only stage` (or `library`) it
//! runs one side a few times, to count instructions:
//! `valgrind --tool=callgrind --toggle-collect='*counted*' PROGRAM --only stage`.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use kvtier_codec::{Aes256Gcm, Chunk, Keyring, MasterKey, Scratch, Stage};
use nix::time::{ClockId, clock_gettime};

const SECRET: [u8; 32] = [7; 32];
const TENANT: &[u8] = b"tenant";
/// The header of a frame, before its nonce.
const HEADER_LEN: usize = 16;
const TAG_LEN: usize = 16;
const CIPHERTEXT_AT: usize = HEADER_LEN + NONCE_LEN;

const CHUNKS: [usize; 4] = [64 << 10, 1 << 20, 4 << 20, 16 << 20];
/// How long a side runs before the other one does.
const SLICE: Duration = Duration::from_millis(2);
const ROUNDS: usize = 201;
/// Chunks of each way where one side runs alone.
const ALONE: usize = 64;

/// One side's work on a chunk.
type Work = fn(&mut Bench);

struct Bench {
    stage: Aes256Gcm,
    key: LessSafeKey,
    scratch: Scratch,
    raw: Vec<u8>,
    frame: Vec<u8>,
    back: Vec<u8>,
}

impl Bench {
    fn new(len: usize) -> Self {
        let keys = Arc::new(Keyring::new());
        keys.insert(MasterKey::new(1, &SECRET).unwrap());
        let stage = Aes256Gcm::new(keys, 1);
        let mut raw = vec![0; len];
        fastrand::Rng::with_seed(1).fill(&mut raw);
        let frame = vec![0; stage.bound(len).unwrap()];
        let mut bench = Bench {
            stage,
            key: tenant_key(),
            scratch: Scratch::new(),
            raw,
            frame,
            back: vec![0; len],
        };
        stage_encode(&mut bench);
        library_decode(&mut bench);
        assert!(bench.back == bench.raw, "the library decrypts what the stage encrypted");
        bench
    }
}

/// The key that the stage derives, as docs/ENCODINGS.md says.
fn tenant_key() -> LessSafeKey {
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"kvtier aes-256-gcm v1");
    let mut key = [0; 32];
    let secret = salt.extract(&SECRET);
    secret.expand(&[b"tenant ", TENANT], hkdf::HKDF_SHA256).unwrap().fill(&mut key).unwrap();
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap())
}

fn chunk() -> Chunk<'static> {
    Chunk::default().with_tenant(TENANT)
}

#[inline(never)]
fn stage_encode(bench: &mut Bench) {
    let raw = black_box(bench.raw.as_slice());
    let encoded = bench.stage.encode(&chunk(), &[raw], &mut bench.frame, &mut bench.scratch);
    assert!(encoded.unwrap().is_some());
}

#[inline(never)]
fn library_encode(bench: &mut Bench) {
    let mut nonce = [0; NONCE_LEN];
    aws_lc_rs::rand::fill(&mut nonce).unwrap();
    library_encode_with(bench, nonce);
}

#[inline(never)]
fn library_encode_same_nonce(bench: &mut Bench) {
    library_encode_with(bench, [1; NONCE_LEN]);
}

fn library_encode_with(bench: &mut Bench, nonce: [u8; NONCE_LEN]) {
    let (_, sealed) = bench.frame.split_at_mut(CIPHERTEXT_AT);
    let (ciphertext, tag) = sealed.split_at_mut(bench.raw.len());
    let nonce = Nonce::assume_unique_for_key(nonce);
    let raw = black_box(&bench.raw);
    bench.key.seal_out_of_place_scatter(nonce, Aad::empty(), raw, ciphertext, &[], tag).unwrap();
}

#[inline(never)]
fn stage_decode(bench: &mut Bench) {
    let frame = black_box(bench.frame.as_slice());
    let mut back = [bench.back.as_mut_slice()];
    bench.stage.decode(&chunk(), frame, &mut back, &mut bench.scratch).unwrap();
}

#[inline(never)]
fn library_decode(bench: &mut Bench) {
    let frame = black_box(bench.frame.as_slice());
    let mut covered = [0; HEADER_LEN + 2];
    covered[..HEADER_LEN].copy_from_slice(&frame[..HEADER_LEN]);
    let nonce = Nonce::try_assume_unique_for_key(&frame[HEADER_LEN..CIPHERTEXT_AT]).unwrap();
    let (ciphertext, tag) = frame[CIPHERTEXT_AT..].split_at(frame.len() - CIPHERTEXT_AT - TAG_LEN);
    let (key, aad) = (&bench.key, Aad::from(covered));
    key.open_separate_gather(nonce, aad, ciphertext, tag, &mut bench.back).unwrap();
}

/// Runs one side, so that a tool which counts from here on leaves the preparation out.
#[inline(never)]
fn counted(bench: &mut Bench, work: Work) {
    (0..ALONE).for_each(|_| work(bench));
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// CPU seconds of `count` chunks.
fn seconds(bench: &mut Bench, work: Work, count: usize) -> f64 {
    let began = cpu_time();
    (0..count).for_each(|_| work(bench));
    (cpu_time() - began).as_secs_f64()
}

/// The value below which `share` of all are.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

fn compare(bench: &mut Bench, way: &str, [stage, library]: [Work; 2], rounds: usize) {
    let once = seconds(bench, library, 4) / 4.0;
    let count = ((SLICE.as_secs_f64() / once) as usize).max(1);
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds + 2 {
        for side in [round % 2, 1 - round % 2] {
            let time = seconds(bench, [stage, library][side], count);
            // The first rounds warm up.
            if round >= 2 {
                times[side].push(time);
            }
        }
    }
    let [stage, library] = &mut times;
    let mut ratios: Vec<f64> = library.iter().zip(&*stage).map(|(l, s)| l / s).collect();
    let bytes = (count * bench.raw.len()) as f64;
    let [stage, library] = [stage, library].map(|times| bytes / quantile(times, 0.5) / 1e9);
    println!(
        "| {} KiB | {way} | {stage:.1} | {library:.1} | {:.3} | {:.3} to {:.3} |",
        bench.raw.len() >> 10,
        stage / library,
        quantile(&mut ratios, 0.25),
        quantile(&mut ratios, 0.75)
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let only = args.iter().position(|arg| arg == "--only").and_then(|at| args.get(at + 1));
    if let Some(side) = only {
        let [encode, decode]: [Work; 2] = match side.as_str() {
            "stage" => [stage_encode, stage_decode],
            _ => [library_encode, library_decode],
        };
        let mut bench = Bench::new(1 << 20);
        // The library's frame has another tag than the stage's: decoding comes first.
        counted(&mut bench, decode);
        counted(&mut bench, encode);
        return;
    }
    let rounds = if args.iter().any(|arg| arg == "--test") { 1 } else { ROUNDS };
    println!("| chunk | | stage GB/s | library GB/s | ratio | middle half of the rounds |");
    println!("|---|---|---|---|---|---|");
    for len in CHUNKS {
        let mut bench = Bench::new(len);
        compare(&mut bench, "encrypt", [stage_encode, library_encode], rounds);
        let same_nonce = [stage_encode, library_encode_same_nonce];
        compare(&mut bench, "encrypt, the library with one nonce", same_nonce, rounds);
        stage_encode(&mut bench);
        compare(&mut bench, "decrypt", [stage_decode, library_decode], rounds);
    }
}
