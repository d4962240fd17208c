//! Request traces: Mooncake's JSON lines, and a binary form of the same.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::BadInput;

/// One request: the ids of its blocks, in order. Equal ids are equal prefixes, so an id names a
/// block and all before it.
pub type Request = Vec<u64>;

/// Requests in the order they came.
#[derive(Debug)]
pub struct Trace {
    /// The requests.
    pub requests: Vec<Request>,
    /// When each request came, in milliseconds since the first; 0 where the trace does not say.
    pub times_ms: Vec<u64>,
    /// Which conversation each request belongs to, where the trace says.
    pub sessions: Option<Vec<u32>>,
    /// Tokens of a block.
    pub block_tokens: u32,
}

/// Tokens of a block in Mooncake's traces, whose lines do not say.
const MOONCAKE_TOKENS: u32 = 512;
/// Tokens of a block in the generated workload.
const GENERATED_TOKENS: u32 = 256;

/// Reads at most `max` requests. `.bin` and `.bin.zst` are binary, all else JSON lines; `-` is
/// standard input, in any of these forms.
pub fn read(path: &Path, max: usize) -> Result<Trace> {
    let name = path.to_string_lossy();
    if name == "-" {
        return standard_input(std::io::stdin().lock(), max);
    }
    let open = File::open(path)
        .map_err(|e| BadInput(format!("cannot open the trace {name}: {e}; check the path")));
    let file = BufReader::new(open?);
    if name.ends_with(".bin.zst") {
        return compressed(file, max).with_context(|| format!("in {name}"));
    }
    if name.ends_with(".bin") {
        return binary(file, max).with_context(|| format!("in {name}"));
    }
    json_lines(file, &name, max)
}

/// What a file of zstd begins with.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A trace whose form its first eight bytes say: those of zstd; with a NUL among them, the two
/// numbers below 2^24 that begin the binary form; JSON otherwise, which has no NUL.
fn standard_input(mut input: impl BufRead, max: usize) -> Result<Trace> {
    let name = "standard input";
    let mut first = Vec::with_capacity(8);
    // Standard input has no name that shows its form, so its first bytes do. They are put back in
    // front below.
    let read = input.by_ref().take(8).read_to_end(&mut first);
    read.map_err(|e| BadInput(format!("cannot read {name}: {e}")))?;
    let is_zstd = first.starts_with(&ZSTD_MAGIC);
    // The counts of a binary trace are small numbers of 32 bits, so some of their bytes are 0. Text
    // has none.
    let is_binary = first.contains(&0);
    let whole = std::io::Cursor::new(first).chain(input);
    match (is_zstd, is_binary) {
        (true, _) => compressed(whole, max).with_context(|| format!("in {name}")),
        (false, true) => binary(whole, max).with_context(|| format!("in {name}")),
        (false, false) => json_lines(whole, name, max),
    }
}

fn compressed(file: impl BufRead, max: usize) -> Result<Trace> {
    let mut zstd = zstd::Decoder::with_buffer(file).context("cannot start zstd")?;
    // 128 MiB at most: the window is allocated by what the file says.
    zstd.window_log_max(27).context("cannot set up zstd")?;
    binary(BufReader::new(zstd), max)
}

struct Line {
    timestamp: f64,
    session: Option<u32>,
    block_tokens: Option<u32>,
    hash_ids: Vec<u64>,
}

impl Line {
    /// Reads a line, or says in the trace's own words what is wrong with it.
    fn parse(text: &str) -> Result<Self, String> {
        let line: Value =
            serde_json::from_str(text).map_err(|e| match text.trim_start().starts_with('{') {
                true => format!("not JSON: {e}"),
                false => "not JSON: it does not begin with {".to_owned(),
            })?;
        let Value::Object(fields) = &line else {
            return Err(format!("it is {}, not an object", kind_of(&line)));
        };
        let small = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
                Some(n) => Ok(Some(n)),
                None => Err(format!("`{name}` is {value}, not a number of 0 to {}", u32::MAX)),
            },
        };
        let timestamp = match fields.get("timestamp") {
            None => 0.0,
            Some(value) => value
                .as_f64()
                .ok_or_else(|| format!("`timestamp` is {}, not a number", kind_of(value)))?,
        };
        let ids = match fields.get("hash_ids") {
            Some(Value::Array(ids)) => ids,
            Some(other) => return Err(format!("`hash_ids` is {}, not a list", kind_of(other))),
            None => return Err("it has no `hash_ids`".into()),
        };
        let id = |id: &Value| {
            id.as_u64()
                .ok_or_else(|| format!("`hash_ids` holds {id}, which is no number of 0 or more"))
        };
        // Numbers are kept as 64 bits: hashes use all of them, which a float would not keep.
        let hash_ids = ids.iter().map(id).collect::<Result<_, _>>()?;
        Ok(Line {
            timestamp,
            session: small("session")?,
            block_tokens: small("block_tokens")?,
            hash_ids,
        })
    }
}

/// What a JSON value is called.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn json_lines(file: impl BufRead, name: &str, max: usize) -> Result<Trace> {
    let mut requests = Vec::new();
    let mut times_ms = Vec::new();
    let mut sessions = Vec::new();
    let mut block_tokens = None;
    for (n, line) in (1..).zip(file.lines()) {
        // The rest of a long trace is not even read.
        if requests.len() == max {
            break;
        }
        let line =
            line.map_err(|e| BadInput(format!("{name}:{n}: {e}; the trace must be UTF-8 text")))?;
        if line.trim().is_empty() {
            continue;
        }
        let parsed = Line::parse(&line).map_err(|e| {
            BadInput(format!("{name}:{n}: no request: {e}; each line is an object with `hash_ids`"))
        })?;
        requests.push(parsed.hash_ids);
        times_ms.push(parsed.timestamp as u64);
        sessions.extend(parsed.session);
        // One size for the whole trace: that of the first line that has one.
        block_tokens = block_tokens.or(parsed.block_tokens);
    }
    if requests.is_empty() {
        return Err(BadInput(format!(
            "{name}: holds no request; each line is an object with `hash_ids`"
        ))
        .into());
    }
    // All lines or none. Sessions of a part would be attached to the wrong requests.
    let sessions = (sessions.len() == requests.len()).then_some(sessions);
    Ok(Trace {
        requests,
        times_ms,
        sessions,
        block_tokens: block_tokens.unwrap_or(MOONCAKE_TOKENS),
    })
}

fn binary(mut file: impl Read, max: usize) -> Result<Trace> {
    let cut = |e: std::io::Error| {
        let form = "it does not begin with { as JSON lines do";
        BadInput(format!("{form}, and is not a whole binary trace: {e}; check that it is a trace"))
    };
    let word = move |file: &mut dyn Read| -> Result<u32> {
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).map_err(cut)?;
        Ok(u32::from_le_bytes(bytes))
    };
    // Nothing is allocated by this number: a file that is no trace may say anything.
    let count = word(&mut file)? as usize;
    let block_tokens = word(&mut file)?;
    if count == 0 {
        return Err(BadInput(
            "the binary trace holds no request; its first four bytes are their number".into(),
        )
        .into());
    }
    let mut requests = Vec::new();
    let mut times_ms = Vec::new();
    let mut sessions = Vec::new();
    for number in 1..=count.min(max) {
        let seconds = u64::from(word(&mut file)?) | u64::from(word(&mut file)?) << 32;
        times_ms.push((f64::from_bits(seconds) * 1000.0).round() as u64);
        sessions.push(word(&mut file)?);
        let _flags = word(&mut file)?;
        let n = word(&mut file)?;
        if n == 0 {
            return Err(BadInput(format!(
                "request {number} of the binary trace names no block; each needs one"
            ))
            .into());
        }
        requests.push((0..n).map(|_| word(&mut file).map(u64::from)).collect::<Result<_>>()?);
    }
    Ok(Trace { requests, times_ms, sessions: Some(sessions), block_tokens })
}

/// A multi-turn chat and agent workload. Sessions of 1 to 12 turns (geometric, mean about 4) share
/// one of 8 system prompts of 2 to 16 blocks; each turn resends all before it and adds 1 to 6
/// blocks. 24 sessions are open at once and a random one goes next, so that a session returns after
/// others have passed.
pub fn generate(requests: usize, seed: u64) -> Trace {
    let mut random = Random(seed | 1);
    let mut next_id = 1u64;
    let mut fresh = |n: u64| {
        next_id += n;
        (next_id - n..next_id).collect::<Vec<u64>>()
    };
    let prompts: Vec<Request> = (0..8).map(|_| fresh(2 + random.below(15))).collect();
    let mut open: Vec<Request> = Vec::new();
    let mut all = Vec::with_capacity(requests);
    while all.len() < requests {
        if open.len() < 24 {
            open.push(prompts[random.below(8) as usize].clone());
        }
        // Conversations take turns in random order, so their blocks compete in the cache.
        let at = random.below(open.len() as u64) as usize;
        open[at].extend(fresh(1 + random.below(6)));
        all.push(open[at].clone());
        if random.below(4) == 0 || open[at].len() > 80 {
            open.swap_remove(at);
        }
    }
    Trace {
        times_ms: vec![0; all.len()],
        sessions: None,
        requests: all,
        block_tokens: GENERATED_TOKENS,
    }
}

/// A small generator of good enough numbers (xorshift*), the same everywhere.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that this seed alone decides.
    pub fn new(seed: u64) -> Self {
        // Small seeds are spread first.
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        (0..8).for_each(|_| _ = random.next());
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
    }

    /// One of 0 to `n` - 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Between 0 and 1, never 0.
    pub fn unit(&mut self) -> f64 {
        // Never 0, whose logarithm the distributions below could not use.
        (self.next() + 1) as f64 / ((1u64 << 31) + 1) as f64
    }

    /// Normal with mean 0 and deviation 1.
    pub fn normal(&mut self) -> f64 {
        // Box and Muller's method.
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The binary form of this many requests of one block each.
    fn written(count: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> = [count, 16].into_iter().flat_map(u32::to_le_bytes).collect();
        for id in 0..count {
            bytes.extend([0, 0, 0, 0, 1, id].into_iter().flat_map(u32::to_le_bytes));
        }
        bytes
    }

    #[test]
    fn a_binary_trace_is_known_by_its_nul_and_not_by_its_count() {
        // Counts whose first byte is a brace or a blank.
        for count in [0x7B, 0x20, 0x09, 0x0A, 0x0D, 20_000, 1] {
            // A pipe may give the bytes one by one.
            let input = BufReader::with_capacity(1, std::io::Cursor::new(written(count)));
            let trace =
                standard_input(input, usize::MAX).unwrap_or_else(|e| panic!("{count}: {e:#}"));
            assert_eq!((trace.requests.len(), trace.block_tokens), (count as usize, 16));
        }
        let lines = standard_input("\n {\"hash_ids\":[1]}\n".as_bytes(), usize::MAX).unwrap();
        assert_eq!(lines.requests, [[1]]);
        let short = standard_input("{}".as_bytes(), usize::MAX).unwrap_err();
        assert!(short.to_string().contains("hash_ids"), "{short}");
    }
}
