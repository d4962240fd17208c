//! Headers of LMCache's GDS files against golden vectors of the real code.
#![allow(clippy::unwrap_used)]

mod common;

use common::{cases, hex};
use kvtier_key::{
    ChunkShape, DType, GDS_HEADER_BYTES, GdsElement, GdsHeader, GdsHeaderError, Geometry,
    MemoryFormat,
};
use serde_json::{Value, json};

/// PyTorch's names of types that stand in headers and in no key.
const OTHERS: [(&str, &str); 3] = [("uint16", "U16"), ("uint32", "U32"), ("uint64", "U64")];

fn element(torch: &str) -> Option<GdsElement> {
    let torch = torch.trim_start_matches("torch.");
    let other = OTHERS
        .iter()
        .find(|(name, _)| *name == torch)
        .and_then(|(_, name)| GdsElement::from_name(name));
    other.or_else(|| GdsElement::from_dtype(DType::from_torch_name(torch)?))
}

fn shape(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

/// Our header of what LMCache's function was given.
fn packed(given: &Value) -> Option<Vec<u8>> {
    let format: MemoryFormat = given["fmt"].as_str().unwrap().parse().unwrap();
    let mut header =
        GdsHeader::new(element(given["dtype"].as_str().unwrap())?, shape(&given["shape"]), format);
    header.metadata[0].1 = given["lmcache_version"].as_str().unwrap().into();
    let extra = given["extra"].as_object().unwrap();
    header = extra
        .iter()
        .fold(header, |header, (name, text)| header.with_metadata(name, text.as_str().unwrap()));
    header.encode().ok()
}

fn check_back(header: &GdsHeader, theirs: &Value) {
    assert_eq!(Some(header.element), element(theirs["dtype"].as_str().unwrap()));
    assert_eq!(header.shape, shape(&theirs["shape"]));
    assert_eq!(header.offset_bytes(), theirs["nbytes"].as_i64());
    assert_eq!(header.format.name(), theirs["fmt"]);
    let metadata: serde_json::Map<_, _> =
        header.metadata.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    assert_eq!(Value::Object(metadata), theirs["extra"]);
}

#[test]
fn headers_are_written_byte_for_byte_and_read_back() {
    for case in cases("gds_metadata").iter().filter(|case| case["in"].get("shape").is_some()) {
        let ours = packed(&case["in"]);
        let theirs = case["out"].get("ok");
        let (Some(ours), Some(theirs)) = (&ours, theirs) else {
            assert!(ours.is_none() && theirs.is_none(), "{case}");
            continue;
        };
        assert_eq!(
            (ours.len(), theirs["nbytes"].as_u64().unwrap()),
            (GDS_HEADER_BYTES, GDS_HEADER_BYTES as u64)
        );
        assert_eq!(ours[..8], hex(theirs["header_len_le"].as_str().unwrap()));
        let text = theirs["json"].as_str().unwrap();
        assert_eq!(str::from_utf8(&ours[8..]).unwrap(), format!("{text:<4088}"));
        check_back(&GdsHeader::decode(ours).unwrap(), &theirs["back"]);
    }
}

#[test]
fn formats_have_lmcaches_names_and_numbers() {
    for case in cases("enums") {
        for (name, code) in case["MemoryFormat"].as_object().into_iter().flatten() {
            let format: MemoryFormat = name.parse().unwrap();
            assert_eq!((format.name(), json!(format.code())), (name.as_str(), code.clone()));
            assert_eq!(MemoryFormat::from_code(code.as_u64().unwrap()), Some(format));
        }
    }
}

#[test]
fn what_lmcache_reads_is_read_and_what_it_refuses_is_not() {
    for case in cases("gds_metadata") {
        let Some(bytes) = case["in"]["unpack_hex"].as_str().map(hex) else { continue };
        match (GdsHeader::decode(&bytes), case["out"].get("ok")) {
            (Ok(header), Some(theirs)) => check_back(&header, theirs),
            (ours, theirs) => assert!(ours.is_err() && theirs.is_none(), "{ours:?} {case}"),
        }
    }
}

fn bf16() -> GdsElement {
    GdsElement::from_dtype(DType::BFloat16).unwrap()
}

/// The header of a chunk of 2048 bytes with one piece of its JSON replaced, as it reads back.
fn with(from: &str, to: &str) -> Result<GdsHeader, GdsHeaderError> {
    let good = GdsHeader::new(bf16(), vec![2, 4, 16, 8], MemoryFormat::Kv2Ltd).encode().unwrap();
    let text = String::from_utf8(good[8..].to_vec()).unwrap();
    let wrong = text.replacen(from, to, 1);
    assert_ne!(wrong, text, "{from}");
    GdsHeader::decode(&[&(wrong.len() as u64).to_le_bytes()[..], wrong.as_bytes()].concat())
}

#[test]
fn only_the_difference_of_the_offsets_counts() {
    let good = GdsHeader::new(bf16(), vec![2, 4, 16, 8], MemoryFormat::Kv2Ltd);
    for same in ["10, 2058", "-2048, 0", "0, 2048, 7"] {
        assert_eq!(with("0, 2048", same), Ok(good.clone()), "{same}");
    }
    for (other, difference) in
        [("0, 2047", 2047), ("1, 2048", 2047), ("0, 4096", 4096), ("10, 0", -10)]
    {
        let header = with("0, 2048", other).unwrap();
        assert_eq!(
            (header.contradiction, header.offset_bytes()),
            (Some(difference), Some(difference)),
            "{other}"
        );
        assert_eq!(header.payload_bytes(), Some(2048), "LMCache goes by the shape");
        assert_eq!(GdsHeader::decode(&header.encode().unwrap()), Ok(header));
    }
    for wrong in ["0", "", "0, 2048.5", "\"0\", 2048", "-9223372036854775808, 9223372036854775807"]
    {
        assert_eq!(with("0, 2048", wrong), Err(GdsHeaderError::Fields), "{wrong}");
    }
}

#[test]
fn an_invalid_header_says_why() {
    let good = GdsHeader::new(bf16(), vec![2, 4, 16, 8], MemoryFormat::Kv2Ltd).encode().unwrap();
    assert_eq!(with("[2, 4", "[4294967296, 4294967296, 4"), Err(GdsHeaderError::Size));
    assert_eq!(with("[2, 4", "[-2, 4"), Err(GdsHeaderError::Fields));
    assert_eq!(with("\"BF16\"", "\"bf16\""), Err(GdsHeaderError::Element));
    assert_eq!(with("\"fmt\": 1", "\"fmt\": 9"), Err(GdsHeaderError::Format));
    assert_eq!(with("\"fmt\": 1", "\"fmt\": \"1\""), Err(GdsHeaderError::Fields));
    assert_eq!(with("\"shape\"", "\"shapes\""), Err(GdsHeaderError::Fields));
    assert_eq!(with("}}}", "}}"), Err(GdsHeaderError::Text));
    assert_eq!(GdsHeader::decode(&good[..100]), Err(GdsHeaderError::Text), "cut in its JSON");
    assert_eq!(GdsHeader::decode(&good[..7]), Err(GdsHeaderError::Length));
    assert_eq!(GdsHeader::decode(&[0xff; 64]), Err(GdsHeaderError::Text));
    assert!(
        GdsHeader::decode(&good[..4095]).is_ok(),
        "LMCache takes what there is of a header that lost blanks"
    );
    let version = with("\"1\"", "\"2\"").unwrap();
    assert!(!version.is_current() && GdsHeader::decode(&good).unwrap().is_current());
}

#[test]
fn a_shorter_chunk_has_fewer_tokens_and_nothing_else() {
    let llama: ChunkShape = Geometry::heads(32, 8, 128).shape().unwrap().into();
    assert_eq!(llama, "2x32x256x1024".parse().unwrap());
    let of = |shape: &ChunkShape, bytes| shape.header(bf16(), bytes).map(|header| header.shape);
    assert_eq!(of(&llama, 32 << 20), Some(vec![2, 32, 256, 1024]));
    assert_eq!(of(&llama, 100 * (128 << 10)), Some(vec![2, 32, 100, 1024]));
    assert_eq!((of(&llama, (128 << 10) + 1), of(&llama, 1), of(&llama, 0)), (None, None, None));
    let latent: ChunkShape = "1x61x256x576".parse().unwrap();
    assert_eq!(
        (latent.format, of(&latent, 2 * 61 * 576)),
        (MemoryFormat::KvMla, Some(vec![1, 61, 1, 576]))
    );
    // Which axis is the tokens' is not said of others: only the whole.
    let layer: ChunkShape = "256x2x1024 KV_T2D".parse().unwrap();
    assert_eq!((of(&layer, 1 << 20), of(&layer, 1 << 19)), (Some(vec![256, 2, 1024]), None));
    assert_eq!(layer.to_string().parse(), Ok(layer));
    for wrong in [
        "",
        "2x32",
        "2x32x0x1024",
        "3x32x256x1024",
        "2x32x256x1024 KV",
        "2x-1x1x1",
        "9999999999x9999999999x1x1 KV_2LTD",
    ] {
        assert!(wrong.parse::<ChunkShape>().is_err(), "{wrong}");
    }
}
