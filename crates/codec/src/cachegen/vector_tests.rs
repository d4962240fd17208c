//! LMCache's own results: symbols, CDFs, maxima, streams, containers and decoded data.
#![allow(clippy::print_stderr)]

use serde_json::Value;

use super::container::Container;
use super::encode::{Encoded, encode_chunk};
use super::layout::{ChunkLayout, KeysOrValues};
use super::quantize::quantize_token;
use super::{BinRange, Bins, CacheGen, KvOrder, KvShape};
use crate::FloatType;
use crate::float_type::{Element, for_float_type};
use crate::vectors;

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn ranges(value: &Value) -> Vec<BinRange> {
    let all = value.as_array().unwrap().iter();
    all.map(|range| BinRange {
        start: number(&range[0]),
        end: number(&range[1]),
        bins: number(&range[2]).try_into().unwrap(),
    })
    .collect()
}

fn float_type(name: &str) -> FloatType {
    let all = [FloatType::Bf16, FloatType::Fp16, FloatType::Fp32];
    let found =
        all.into_iter().find(|float| float.torch_name() == name.trim_start_matches("torch."));
    found.unwrap_or_else(|| panic!("another type: {name}"))
}

/// One case, with its input.
struct Case {
    shape: KvShape,
    tokens: usize,
    bins: Bins,
    dtype: FloatType,
    raw: Vec<u8>,
    expected: Value,
}

impl Case {
    fn new(case: &Value) -> Case {
        let input = &case["in"];
        assert_eq!(input["kv_layout"], "[L,2,T,H,D]");
        let shape = KvShape {
            layers: number(&input["layers"]),
            heads: number(&input["heads"]),
            head_size: number(&input["head_size"]),
        };
        let (key, value) = (ranges(&input["key_bins"]), ranges(&input["value_bins"]));
        Case {
            shape,
            tokens: number(&input["tokens"]),
            bins: Bins::from_ranges(shape.layers, &key, &value).unwrap(),
            dtype: float_type(input["dtype"].as_str().unwrap()),
            raw: hex(&input["kv_hex"]),
            expected: case["out"]["ok"].clone(),
        }
    }

    fn codec(&self, order: KvOrder) -> CacheGen {
        let codec = CacheGen::new(self.shape, order, self.dtype, self.bins.clone()).unwrap();
        codec.with_device("cpu").unwrap()
    }

    fn layout(&self) -> ChunkLayout {
        let layout = ChunkLayout::new(self.shape, KvOrder::ByLayer, self.dtype, self.raw.len());
        let layout = layout.unwrap();
        assert_eq!(layout.tokens, self.tokens);
        layout
    }

    fn encoded(&self) -> Encoded {
        let layout = self.layout();
        for_float_type!(self.dtype, encode_chunk(&self.raw, &layout, &self.bins)).unwrap()
    }

    fn container(&self) -> Vec<u8> {
        let codec = self.codec(KvOrder::ByLayer);
        let mut out = vec![0; codec.bound(self.raw.len()).unwrap()];
        let len = codec.encode(&self.raw, &mut out).unwrap();
        out.truncate(len);
        out
    }
}

/// Numbers of lists in lists, in order.
fn flat(value: &Value) -> Vec<usize> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        other => vec![number(other)],
    }
}

fn symbols<E: Element>(case: &Case, which: KeysOrValues) -> Vec<usize> {
    let layout = case.layout();
    let mut all = vec![];
    for layer in 0..case.shape.layers {
        let bins = match which {
            KeysOrValues::Keys => case.bins.key()[layer],
            KeysOrValues::Values => case.bins.value()[layer],
        };
        for row in case.raw[layout.plane(which, layer)].chunks_exact(layout.row_bytes()) {
            let mut symbols = vec![0xee; case.shape.channels()];
            quantize_token::<E>(row, bins, &mut symbols);
            all.extend(symbols.into_iter().map(usize::from));
        }
    }
    all
}

fn cases() -> Vec<Case> {
    let mut all = vectors::cases("serde_cachegen.json");
    all.extend(vectors::cases("serde_cachegen_edge_cases.json"));
    // Those that LMCache refuses are another test's.
    all.iter().filter(|case| case["out"]["ok"].is_object()).map(Case::new).collect()
}

#[test]
fn what_lmcache_refuses_is_refused() {
    let mut all = vectors::cases("serde_cachegen.json");
    all.extend(vectors::cases("serde_cachegen_edge_cases.json"));
    for case in all.iter().filter(|case| !case["out"]["ok"].is_object()) {
        let input = &case["in"];
        let (key, value) = (ranges(&input["key_bins"]), ranges(&input["value_bins"]));
        assert!(Bins::from_ranges(number(&input["layers"]), &key, &value).is_err(), "{input}");
    }
}

#[test]
fn symbols_cdfs_maxima_and_streams_are_those_of_lmcache() {
    for (index, case) in cases().iter().enumerate() {
        let expected = &case.expected;
        let keys = for_float_type!(case.dtype, symbols(case, KeysOrValues::Keys));
        let values = for_float_type!(case.dtype, symbols(case, KeysOrValues::Values));
        assert_eq!(keys, flat(&expected["symbols_key"]), "case {index}");
        assert_eq!(values, flat(&expected["symbols_value"]), "case {index}");

        let encoded = case.encoded();
        let cdf_shape = [2 * case.shape.layers, case.shape.channels(), encoded.cdf_entries];
        assert_eq!(cdf_shape[..], flat(&expected["cdf_shape"])[..], "case {index}");
        assert_eq!(encoded.cdf, hex(&expected["cdf_i16_hex"]), "case {index}");
        assert_eq!(float_type(expected["max_key_dtype"].as_str().unwrap()), case.dtype);
        assert_eq!(encoded.max_key, hex(&expected["max_key_hex"]), "case {index}");
        assert_eq!(encoded.max_value, hex(&expected["max_value_hex"]), "case {index}");
        let chunks = expected["chunks"].as_array().unwrap();
        assert_eq!(encoded.blocks.len(), chunks.len(), "case {index}");
        for (block, chunk) in encoded.blocks.iter().zip(chunks) {
            assert_eq!(block.tokens, number(&chunk["ntokens"]), "case {index}");
            let lengths: Vec<u8> = flat(&chunk["lengths"])
                .iter()
                .flat_map(|len| (*len as u32).to_le_bytes())
                .collect();
            assert_eq!(block.lengths, lengths, "case {index}");
            assert_eq!(block.streams, hex(&chunk["bytestream_hex"]), "case {index}");
        }
    }
}

fn assert_same_floats(found: &[u8], expected: &[u8], dtype: FloatType, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let pairs = found.chunks_exact(dtype.bytes()).zip(expected.chunks_exact(dtype.bytes()));
    for (index, (found, expected)) in pairs.enumerate() {
        // Of NaN each version of PyTorch and each processor makes other bits.
        let both_nan =
            for_float_type!(dtype, is_nan(found)) && for_float_type!(dtype, is_nan(expected));
        assert!(both_nan || found == expected, "{what}: element {index}: {found:?} {expected:?}");
    }
}

fn is_nan<E: Element>(bytes: &[u8]) -> bool {
    E::to_f32(E::read(bytes)).is_nan()
}

#[test]
fn decoded_data_is_that_of_lmcache() {
    for (index, case) in cases().iter().enumerate() {
        let expected = &case.expected;
        let stored = case.container();
        // As 32-bit floats: before LMCache converts to the type of the model.
        let wide =
            CacheGen::new(case.shape, KvOrder::KeysThenValues, FloatType::Fp32, case.bins.clone())
                .unwrap();
        let mut raw = vec![0; case.raw.len() / case.dtype.bytes() * 4];
        wide.decode(&stored, &mut raw).unwrap();
        let dequantized =
            [hex(&expected["dequant_key_f32_hex"]), hex(&expected["dequant_value_f32_hex"])]
                .concat();
        assert_same_floats(&raw, &dequantized, FloatType::Fp32, &format!("case {index}, f32"));
        if expected["decoded_hex"].is_string() {
            let mut raw = vec![0; case.raw.len()];
            case.codec(KvOrder::ByLayer).decode(&stored, &mut raw).unwrap();
            let decoded = hex(&expected["decoded_hex"]);
            assert_same_floats(&raw, &decoded, case.dtype, &format!("case {index}"));
        }
    }
}

/// A pickle of Python as this crate writes it: without its one frame, and with the same keys of
/// storages, which are addresses.
fn normalized(pickle: &[u8]) -> Vec<u8> {
    assert_eq!(pickle[..3], [0x80, 4, 0x95]);
    let mut bytes = [&pickle[..2], &pickle[11..]].concat();
    for at in 0..bytes.len().saturating_sub(19) {
        if bytes[at..].starts_with(b"X\x0e\0\0\0")
            && bytes[at + 5..at + 19].iter().all(u8::is_ascii_digit)
        {
            bytes[at + 5..at + 19].copy_from_slice(b"94000000000000");
        }
    }
    bytes
}

#[test]
fn containers_are_those_of_lmcache() {
    for (index, case) in cases().iter().enumerate() {
        let ours = case.container();
        let shape = CacheGen::inspect(&ours).unwrap();
        assert_eq!((shape.tokens, shape.dtype), (case.tokens, case.dtype));
        if vectors::is_committed() {
            // The one frame takes 9 bytes, and the keys are as long as those of the cases.
            let len = number(&case.expected["pickle_len"]);
            assert!(len > 65_536 || len == ours.len() + 9, "case {index}: {len}, {}", ours.len());
        }
        if !case.expected["pickle_hex"].is_string() {
            continue;
        }
        let pickle = hex(&case.expected["pickle_hex"]);
        let theirs = Container::read(&pickle).unwrap();
        let encoded = case.encoded();
        assert_eq!(theirs.cdf, encoded.cdf, "case {index}");
        assert_eq!([theirs.max_key, theirs.max_value], [&encoded.max_key[..], &encoded.max_value]);
        assert_eq!(theirs.blocks.len(), encoded.blocks.len());
        let codec = case.codec(KvOrder::ByLayer);
        let (mut from_ours, mut from_theirs) = (vec![0; case.raw.len()], vec![1; case.raw.len()]);
        codec.decode(&ours, &mut from_ours).unwrap();
        codec.decode(&pickle, &mut from_theirs).unwrap();
        assert_eq!(from_ours, from_theirs, "case {index}");
        if vectors::is_committed() {
            assert_eq!(ours, normalized(&pickle), "case {index}: opcode for opcode");
        }
    }
}

#[test]
fn the_table_of_models_is_that_of_lmcache() {
    for case in vectors::cases("cachegen_model_table.json") {
        let name = case["in"].as_str().unwrap();
        let expected = &case["out"]["ok"];
        if expected.is_null() {
            assert_eq!(Bins::for_model(name), None, "{name}");
            continue;
        }
        let layers = number(&expected["nlayers"]);
        let (key, value) = (ranges(&expected["kspecs"]), ranges(&expected["vspecs"]));
        let expected = Bins::from_ranges(layers, &key, &value).unwrap();
        // LMCache asks Hugging Face for the layers of models that its table lacks.
        assert!(Bins::for_model(name).is_some() || !vectors::is_committed(), "{name}");
        let found = Bins::for_model(name).unwrap_or_else(|| Bins::for_layers(layers));
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(Bins::for_model("another"), None);
    assert_eq!(Bins::for_layers(9).key(), [32; 9]);
    assert_eq!(Bins::for_layers(10).value(), [32, 32, 16, 16, 16, 16, 16, 16, 16, 16]);
}

#[test]
fn the_committed_cases_cover_every_type() {
    if vectors::is_committed() {
        let cases = cases();
        assert_eq!(cases.len(), 9);
        for dtype in [FloatType::Bf16, FloatType::Fp16, FloatType::Fp32] {
            assert!(cases.iter().any(|case| case.dtype == dtype));
        }
    }
}
