//! Data that encodings are measured with: samples of the operator's files, or made-up KV data.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Result;
use kvtier::codec::{FloatType, Fp8, Fp8Kind};
use kvtier::key::DType;

use crate::BadInput;

/// Files are cut into chunks of at most this many bytes.
const CHUNK: usize = 4 << 20;

/// The most bytes of all files together.
const TOTAL: usize = 64 << 20;

/// The most files that are read.
const FILES: usize = 64;

/// The most names that are listed below a directory.
const NAMES: usize = 100_000;

/// The least bytes that say something.
const LEAST: usize = 64 << 10;

/// Chunks to measure with.
pub struct SampleData {
    /// The chunks; no one is empty.
    pub chunks: Vec<Vec<u8>>,
    /// How many files they are from; 0 for made-up data.
    pub files: usize,
}

impl SampleData {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    /// Reads the beginnings of files, and of files below directories.
    pub fn read(paths: &[PathBuf]) -> Result<Self> {
        let mut all = Vec::new();
        for path in paths {
            list(path, &mut all)?;
        }
        // Evenly from all of them: neighbouring names are often of one request.
        let step = all.len().div_ceil(FILES).max(1);
        let picked: Vec<&PathBuf> = all.iter().step_by(step).collect();
        let each = (TOTAL / picked.len().max(1)).max(LEAST);
        let mut sample = SampleData { chunks: Vec::new(), files: 0 };
        for path in picked {
            let mut bytes = Vec::new();
            let read =
                File::open(path).and_then(|file| file.take(each as u64).read_to_end(&mut bytes));
            read.map_err(|e| BadInput(format!("--sample: cannot read {}: {e}", path.display())))?;
            sample.files += usize::from(!bytes.is_empty());
            sample.chunks.extend(bytes.chunks(CHUNK).map(<[u8]>::to_vec));
        }
        if sample.bytes() < LEAST as u64 {
            let has = sample.bytes();
            let what =
                format!("--sample: {has} bytes are too few; name files with {LEAST} or more");
            return Err(BadInput(what).into());
        }
        Ok(sample)
    }

    /// Normally distributed numbers in 1,024 channels, each with a scale of its own.
    pub fn made_up(dtype: DType) -> Result<Self> {
        let mut random = Random(1);
        let scales: Vec<f32> = (0..1024).map(|_| (random.normal() * 0.8).exp()).collect();
        let mut chunk = || -> Vec<f32> {
            (0..CHUNK / 2).map(|n| random.normal() * scales[n % scales.len()]).collect()
        };
        let numbers: Vec<Vec<f32>> = (0..2).map(|_| chunk()).collect();
        let chunks = numbers.iter().map(|numbers| to_bytes(numbers, dtype));
        Ok(SampleData { chunks: chunks.collect::<Result<_>>()?, files: 0 })
    }
}

/// The bytes of numbers in a type that KV data has.
fn to_bytes(numbers: &[f32], dtype: DType) -> Result<Vec<u8>> {
    let bf16 = |number: &f32| ((number.to_bits() >> 16) as u16).to_le_bytes();
    match dtype {
        DType::BFloat16 => Ok(numbers.iter().flat_map(bf16).collect()),
        DType::Half => {
            Ok(numbers.iter().flat_map(|number| to_half(*number).to_le_bytes()).collect())
        }
        _ => {
            let kind = Fp8Kind::by_torch_name(dtype.torch_name()).map_err(|_| {
                let name = dtype.torch_name();
                BadInput(format!("no data of type {name} is made up; name files by --sample"))
            })?;
            let raw: Vec<u8> = numbers.iter().flat_map(bf16).collect();
            let cast = Fp8::new(kind, FloatType::Bf16);
            let mut bytes = vec![0; cast.bound(raw.len())?];
            let len = cast.encode(&raw, &mut bytes)?;
            bytes.truncate(len);
            Ok(bytes)
        }
    }
}

/// A number as IEEE half precision: its mantissa is cut, and what is too small is 0.
fn to_half(number: f32) -> u16 {
    let bits = number.to_bits();
    let (sign, exponent) = ((bits >> 16) as u16 & 0x8000, (bits >> 23 & 0xff) as i32 - 112);
    let mantissa = (bits >> 13 & 0x3ff) as u16;
    match exponent {
        1..31 => sign | (exponent as u16) << 10 | mantissa,
        31.. => sign | 0x7bff,
        _ => sign,
    }
}

/// Adds a file, or those below a directory but for kvtier's own.
fn list(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let wrong = |e| BadInput(format!("--sample: cannot read {}: {e}", path.display()));
    let kind = path.metadata().map_err(wrong)?;
    if !kind.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut below: Vec<PathBuf> = Vec::new();
    for entry in path.read_dir().map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let kind = entry.file_type().map_err(wrong)?;
        let is_own = entry.file_name() == ".kvtier";
        if !is_own && (kind.is_file() || kind.is_dir()) {
            below.push(entry.path());
        }
        if below.len() + files.len() >= NAMES {
            break;
        }
    }
    below.sort();
    below.iter().try_for_each(|path| if files.len() < NAMES { list(path, files) } else { Ok(()) })
}

/// Equal numbers in every run.
struct Random(u64);

impl Random {
    /// From 0 to 1.
    fn uniform(&mut self) -> f32 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1 << 24) as f32
    }

    /// Normally distributed, by the sum of uniform ones.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }
}
