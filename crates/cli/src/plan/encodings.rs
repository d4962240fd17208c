//! `kvtier plan --encode`: what each encoding saves and costs on a link, and below which speed of
//! the link it pays.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use kvtier::codec::{
    Aes256Gcm, Chain, Decoder, Keyring, MasterKey, Stage, TierEncoding, stage_by_name,
};
use kvtier::key::DType;
use serde_json::Value;

use super::coding_rate::{CodingRate, measure};
use super::link_speed::{gb, parse};
use super::sample_data::SampleData;
use crate::BadInput;
use crate::json::json;
use crate::table;

/// What is compared where `--encode` names nothing.
const USUAL: &str = "lz4,zstd:1,zstd:3,bf16-split,aes-256-gcm,bf16-split+aes-256-gcm";

/// How long each direction of an encoding is measured.
const MEASURED: Duration = Duration::from_millis(250);

/// An encoding is recommended if it makes loads at least this much faster.
const WORTHWHILE: f64 = 1.05;

/// The options of `--encode`.
#[derive(clap::Args)]
pub struct EncodingArgs {
    /// Compare encodings instead: what each saves and costs, and below which speed of the link
    /// it pays. Stages are joined by +, as in bf16-split+zstd:3; without names the usual ones.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 0..=1, default_missing_value = USUAL, requires = "link")]
    encode: Vec<String>,
    /// The speed of the link to the bucket, or of the device, such as 10Gbit/s or 3.2GB/s.
    #[arg(long, value_name = "RATE", requires = "encode")]
    link: Option<String>,
    /// Files of raw KV data, or directories of such files, to measure with; several are
    /// allowed. Without it data is made up.
    #[arg(long, value_name = "PATH", requires = "encode")]
    sample: Vec<PathBuf>,
    /// Stored bytes by raw bytes, such as 0.7, instead of what is measured; not for aes-256-gcm.
    #[arg(long, value_name = "SHARE", requires = "encode")]
    ratio: Option<f64>,
    /// Threads that decode at once (default: one for each core of this machine).
    #[arg(long, requires = "encode")]
    threads: Option<usize>,
}

impl EncodingArgs {
    /// Whether encodings are compared.
    pub fn is_on(&self) -> bool {
        !self.encode.is_empty()
    }
}

/// The link, and the threads that decode what comes from it.
#[derive(Clone, Copy)]
struct Link {
    /// Bytes in a second.
    speed: f64,
    threads: usize,
}

/// One encoding on the link.
struct Row {
    name: String,
    /// Whether decoded chunks differ from saved ones.
    is_lossy: bool,
    rate: CodingRate,
    /// Raw bytes in a second of a batch: some chunks are decoded while others are read.
    batch: f64,
    /// Raw bytes in a second of one chunk alone: it is decoded once it is read.
    alone: f64,
    /// The same from S3, where some encodings are decoded while the chunk arrives.
    alone_s3: f64,
    /// The speed of a link below which batches load faster than plain ones; 0 if none.
    pays_below: f64,
    /// The same for one chunk alone.
    alone_pays_below: f64,
    alone_s3_pays_below: f64,
}

impl Row {
    fn new(name: &str, rate: CodingRate, link: Link) -> Self {
        let decode = rate.decode * link.threads as f64;
        // What refuses all chunks is the same as nothing on every link.
        let gains = rate.ratio < 1.0 && rate.decode.is_finite();
        let alone = 1.0 / (rate.ratio / link.speed + 1.0 / rate.decode);
        // There the bytes that are not read take as long as decoding.
        let alone_pays_below = if gains { (1.0 - rate.ratio) * rate.decode } else { 0.0 };
        let by_s3 = rate.while_arriving && gains;
        Row {
            name: name.to_owned(),
            is_lossy: false,
            rate,
            batch: (link.speed / rate.ratio).min(decode),
            alone,
            alone_s3: if by_s3 { (link.speed / rate.ratio).min(rate.decode) } else { alone },
            pays_below: if gains { decode } else { 0.0 },
            alone_pays_below,
            alone_s3_pays_below: if by_s3 { rate.decode } else { alone_pays_below },
        }
    }

    /// Seconds of one core for 10^9 raw bytes, saved once and loaded once.
    fn cpu_s_per_gb(&self) -> f64 {
        1e9 / self.rate.encode + 1e9 / self.rate.decode
    }
}

/// Measures and prints.
pub fn run(args: &EncodingArgs, dtype: DType, as_json: bool) -> Result<()> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let link = Link {
        speed: parse("--link", args.link.as_deref().unwrap_or_default())?,
        threads: args.threads.unwrap_or_else(cores).max(1),
    };
    if args.ratio.is_some_and(|ratio| !(ratio > 0.0 && ratio <= 1.0)) {
        return Err(BadInput("--ratio takes a share above 0 and at most 1".into()).into());
    }
    let encodings: Vec<(String, TierEncoding)> = args
        .encode
        .iter()
        .map(|name| Ok((name.clone(), encoding(name)?)))
        .collect::<Result<_>>()?;
    let data = match args.sample.as_slice() {
        [] => SampleData::made_up(dtype)?,
        paths => SampleData::read(paths)?,
    };
    let mut rows = Vec::with_capacity(encodings.len());
    for (name, encoding) in &encodings {
        let mut rate = measure(encoding, dtype, &data, MEASURED)?;
        if name != "aes-256-gcm" {
            rate.ratio = args.ratio.unwrap_or(rate.ratio);
        }
        rows.push(Row { is_lossy: encoding.is_lossy(), ..Row::new(name, rate, link) });
    }
    if as_json {
        return crate::stdout::line(&to_json(&rows, link, dtype, &data).to_string());
    }
    print(&rows, link, &introduction(args, link, dtype, &data))
}

/// The encoding that names joined by `+` mean. Its key is made up.
fn encoding(name: &str) -> Result<TierEncoding> {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[7; 32])?);
    let aes = Arc::new(Aes256Gcm::new(keys, 1));
    let stage = |name: &str| -> Result<Arc<dyn Stage>, kvtier::codec::Error> {
        if name == "aes-256-gcm" { Ok(aes.clone()) } else { stage_by_name(name) }
    };
    let chain = name.split('+').map(|name| stage(name.trim())).collect::<Result<_, _>>();
    let chain =
        chain.and_then(Chain::new).map_err(|e| BadInput(format!("--encode {name}: {e}")))?;
    Ok(TierEncoding::new(chain, Decoder::new().with_stage(aes)))
}

/// The encoding whose batches load fastest, if it is worth it; of equal ones the cheapest.
fn fastest(rows: &[Row], link: Link) -> Option<&Row> {
    let best = rows.iter().max_by(|one, other| {
        let cheaper = || other.cpu_s_per_gb().total_cmp(&one.cpu_s_per_gb());
        one.batch.total_cmp(&other.batch).then_with(cheaper)
    });
    best.filter(|best| best.batch >= link.speed * WORTHWHILE)
}

/// What is printed above the table.
fn introduction(args: &EncodingArgs, link: Link, dtype: DType, data: &SampleData) -> String {
    let from = match data.files {
        0 => "made-up data (measure yours with --sample)".to_owned(),
        files => format!("{} of {files} files", kvtier::byte_size::format(data.bytes())),
    };
    let stated = if args.ratio.is_some() { ", ratio as stated" } else { "" };
    format!(
        "link {} GB/s, {} decoding threads, elements of {}, {from}{stated}; rates in GB/s (10^9 raw bytes), enc and dec of one thread",
        gb(link.speed),
        link.threads,
        dtype.torch_name()
    )
}

fn print(rows: &[Row], link: Link, introduction: &str) -> Result<()> {
    let head = ["encoding", "stored", "enc", "dec", "CPU s/GB", "batch", "alone", "pays below"];
    let cell = |row: &Row| {
        let decode = if row.rate.decode.is_finite() { gb(row.rate.decode) } else { "-".into() };
        let pays = if row.pays_below > 0.0 { gb(row.pays_below) } else { "never".into() };
        vec![
            format!("{}{}", row.name, if row.is_lossy { " (lossy)" } else { "" }),
            format!("{:.3}", row.rate.ratio),
            gb(row.rate.encode),
            decode,
            format!("{:.2}", row.cpu_s_per_gb()),
            gb(row.batch),
            gb(row.alone),
            pays,
        ]
    };
    let cells: Vec<Vec<String>> = rows.iter().map(cell).collect();
    let mut lines = table::wrapped(introduction, 2);
    lines.extend(table::lines(&head, &cells));
    for advice in advice(rows, link) {
        lines.extend(table::wrapped(&advice, 2));
    }
    lines.iter().try_for_each(|line| crate::stdout::line(line))
}

fn advice(rows: &[Row], link: Link) -> Vec<String> {
    let times = |rate: f64| rate / link.speed;
    let mut lines = vec![match fastest(rows, link) {
        Some(best) => format!(
            "for fast loads: {}: a batch loads {:.2} times as fast as a plain one, one chunk alone {:.2} times, from S3 {:.2} times",
            best.name,
            times(best.batch),
            times(best.alone),
            times(best.alone_s3)
        ),
        None => "for fast loads: none: on this link no encoding makes loads 5 % faster".to_owned(),
    }];
    let smallest = rows.iter().min_by(|one, other| one.rate.ratio.total_cmp(&other.rate.ratio));
    if let Some(smallest) = smallest.filter(|row| row.rate.ratio < 0.98) {
        lines.push(format!(
            "for space: {}: {:.0} % fewer bytes, a batch loads at {:.2} of the plain rate",
            smallest.name,
            100.0 * (1.0 - smallest.rate.ratio),
            times(smallest.batch)
        ));
    }
    for row in rows.iter().filter(|row| row.is_lossy) {
        lines.push(format!(
            "{} is lossy: loaded chunks differ from what the model computed",
            row.name
        ));
    }
    lines
}

fn to_json(rows: &[Row], link: Link, dtype: DType, data: &SampleData) -> Value {
    let row = |row: &Row| {
        json!({
            "encoding": row.name, "lossy": row.is_lossy, "ratio": row.rate.ratio, "saved_bytes_per_gb": 1e9 * (1.0 - row.rate.ratio),
            "encode_bytes_per_s": row.rate.encode, "decode_bytes_per_s": row.rate.decode, "cpu_s_per_gb": row.cpu_s_per_gb(),
            "batch_bytes_per_s": row.batch, "alone_bytes_per_s": row.alone, "alone_s3_bytes_per_s": row.alone_s3,
            "pays_below_bytes_per_s": row.pays_below, "alone_pays_below_bytes_per_s": row.alone_pays_below,
            "alone_s3_pays_below_bytes_per_s": row.alone_s3_pays_below,
        })
    };
    json!({
        "link_bytes_per_s": link.speed, "threads": link.threads, "dtype": dtype.torch_name(), "sample_files": data.files,
        "sample_bytes": data.bytes(), "encodings": rows.iter().map(row).collect::<Vec<_>>(),
        "recommended": fastest(rows, link).map(|best| best.name.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_pays_below_the_break_even_and_not_above() {
        let rate = CodingRate { ratio: 0.7, encode: 2e9, decode: 5e9, while_arriving: false };
        let row = |speed: f64, threads: usize| Row::new("x", rate, Link { speed, threads });
        let Row { pays_below, alone_pays_below, .. } = row(1e9, 2);
        assert!((pays_below - 1e10).abs() < 1.0 && (alone_pays_below - 1.5e9).abs() < 1.0);
        for (factor, pays) in [(0.99, true), (1.01, false)] {
            let speed = pays_below * factor;
            assert_eq!(row(speed, 2).batch > speed, pays);
            let speed = alone_pays_below * factor;
            assert_eq!(row(speed, 2).alone > speed, pays);
        }
        // At 1 Gbit/s: by the ratio, and one chunk alone nearly so.
        let slow = row(1.25e8, 1);
        assert!((slow.batch * 0.7 / 1.25e8 - 1.0).abs() < 1e-9 && slow.alone > 0.95 * slow.batch);

        assert_eq!(slow.alone_s3, slow.alone);
        let arriving = CodingRate { while_arriving: true, ..rate };
        for (speed, alone) in [(1e9, 1e9 / 0.7), (4e9, 5e9), (6e9, 5e9)] {
            let row = Row::new("x", arriving, Link { speed, threads: 2 });
            assert_eq!((row.alone_s3, row.alone_s3_pays_below), (alone, 5e9));
        }

        let link = Link { speed: 1e9, threads: 1 };
        let other = CodingRate { ratio: 0.5, ..rate };
        let dear = CodingRate { encode: 1e9, ..other };
        let rows =
            [("x", rate), ("y", other), ("z", dear)].map(|(name, rate)| Row::new(name, rate, link));
        assert_eq!(fastest(&rows, link).map(|row| row.name.as_str()), Some("y"));
        assert!(fastest(&rows, Link { speed: 4.9e9, threads: 1 }).is_none());
        let refused = CodingRate { ratio: 1.0, encode: 2e10, decode: f64::INFINITY, ..rate };
        let refused = Row::new("x", refused, link);
        assert_eq!((refused.pays_below, refused.batch, refused.alone.round()), (0.0, 1e9, 1e9));
    }
}
