//! The real LMCache and our CacheGen and fp8: each decodes what the other encoded, to the same
//! bytes. Only where `KVTIER_LMCACHE_PYTHON` names an interpreter that has LMCache 0.5.6.
#![allow(clippy::unwrap_used)]
#![allow(clippy::print_stderr)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvtier_codec::cachegen::{Bins, CacheGen, KvOrder, KvShape};
use kvtier_codec::{FloatType, Fp8, Fp8Kind};

/// As in the script.
const SHAPE: KvShape = KvShape { layers: 32, heads: 2, head_size: 10 };
const FLOATS: [FloatType; 3] = [FloatType::Bf16, FloatType::Fp16, FloatType::Fp32];

/// A directory of this process, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("kvtier-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name)).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn python() -> Option<String> {
    let python = std::env::var("KVTIER_LMCACHE_PYTHON").ok().filter(|python| !python.is_empty());
    if python.is_none() {
        eprintln!("skipped: KVTIER_LMCACHE_PYTHON names no interpreter with LMCache");
    }
    python
}

fn lmcache(python: &str, mode: &str, float: FloatType, directory: &Path) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lmcache_cachegen.py");
    let mut command = Command::new(python);
    command.args([script, mode, float.torch_name()]).arg(directory);
    command.env("PYTHONWARNINGS", "ignore").env("LMCACHE_LOG_LEVEL", "ERROR");
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stdout).contains(&format!("{mode} done")));
}

/// Of a bell curve whose width differs by channel; tokens of zeros too.
fn payload(float: FloatType, tokens: usize) -> Vec<u8> {
    let mut state = 3u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let channels = SHAPE.heads * SHAPE.head_size;
    let mut raw = vec![];
    for row in 0..2 * SHAPE.layers * tokens {
        for channel in 0..channels {
            let bell = (0..8).map(|_| next()).sum::<f32>() * (0.1 + channel as f32);
            let value = if row % 97 == 5 { 0.0 } else { bell };
            match float {
                FloatType::Fp32 => raw.extend(value.to_le_bytes()),
                FloatType::Bf16 => raw.extend(&value.to_le_bytes()[2..]),
                // Any half below 2 and above 2^-14 in magnitude.
                FloatType::Fp16 => {
                    let bits = (value.to_bits() >> 17) as u16 & 0x9fff | 0x2000;
                    raw.extend(if value == 0.0 { [0, 0] } else { bits.to_le_bytes() });
                }
            }
        }
    }
    raw
}

#[test]
fn cachegen_decodes_on_both_sides_to_the_same_bytes() {
    let Some(python) = python() else { return };
    for (float, tokens) in FLOATS.into_iter().zip([300, 256, 7]) {
        let directory = Directory::new(&format!("cachegen-{}", float.torch_name()));
        let raw = payload(float, tokens);
        fs::write(directory.0.join("raw"), &raw).unwrap();
        lmcache(&python, "encode", float, &directory.0);

        let bins = Bins::for_model("test_model").unwrap();
        let codec = CacheGen::new(SHAPE, KvOrder::KeysThenValues, float, bins).unwrap();
        let codec = codec.with_device("cpu").unwrap();
        let mut ours = vec![0; codec.bound(raw.len()).unwrap()];
        let len = codec.encode(&raw, &mut ours).unwrap();
        fs::write(directory.0.join("ours"), &ours[..len]).unwrap();
        lmcache(&python, "decode", float, &directory.0);

        let mut values = vec![0; raw.len()];
        codec.decode(&directory.read("theirs"), &mut values).unwrap();
        assert_eq!(values, directory.read("their_values"), "ours of theirs, {float:?}");
        assert_eq!(values, directory.read("values"), "theirs of ours, {float:?}");
        assert!(values != raw, "lossy");
        assert!(tokens < 100 || len * 2 < raw.len(), "{len} of {}", raw.len());
    }
}

#[test]
fn fp8_casts_on_both_sides_to_the_same_bytes() {
    let Some(python) = python() else { return };
    for float in FLOATS {
        let directory = Directory::new(&format!("fp8-{}", float.torch_name()));
        let raw = payload(float, 3);
        fs::write(directory.0.join("raw"), &raw).unwrap();
        lmcache(&python, "cast", float, &directory.0);
        for name in ["float8_e4m3fn", "float8_e5m2"] {
            let fp8 = Fp8::new(Fp8Kind::by_torch_name(name).unwrap(), float);
            let mut stored = vec![0; fp8.bound(raw.len()).unwrap()];
            fp8.encode(&raw, &mut stored).unwrap();
            assert_eq!(stored, directory.read(name), "{float:?}");
            let mut values = vec![0; raw.len()];
            fp8.decode(&stored, &mut values).unwrap();
            assert_eq!(values, directory.read(&format!("{name}.values")), "{float:?}");
        }
    }
}
