//! SHA-256 over canonical CBOR (RFC 8949), of the few shapes that vLLM and LMCache hash.

use sha2::{Digest as _, Sha256};

use super::Token;

// Major types of RFC 8949, before the shift into the upper three bits of a head byte.
const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const TAG: u8 = 6;
// A whole byte: major type 7 with the simple value 22.
const NULL: u8 = 0xf6;

/// Of a text: what a seed's chain starts from.
pub(super) fn text_sha256(text: &str) -> [u8; 32] {
    // A head has 9 bytes at most.
    let mut out = Vec::with_capacity(text.len() + 9);
    head(&mut out, TEXT, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
    Sha256::digest(&out).into()
}

/// Of `(parent, (token, ...), None)`: the multi-process mode.
pub(super) fn object_sha256<T: Token>(
    parent: &[u8; 32],
    tokens: &[T],
    out: &mut Vec<u8>,
) -> [u8; 32] {
    out.clear();
    head(out, ARRAY, 3);
    head(out, BYTES, 32);
    out.extend_from_slice(parent);
    array(out, tokens);
    // vLLM's third member, the extra keys (LoRA, multi-modal data, salt): LMCache passes none. Its
    // absence would give another hash.
    out.push(NULL);
    Sha256::digest(out).into()
}

/// Of `(parent, (token, ...), ())`: the in-process mode.
pub(super) fn engine_sha256<T: Token>(parent: u64, tokens: &[T], out: &mut Vec<u8>) -> [u8; 32] {
    out.clear();
    head(out, ARRAY, 3);
    head(out, UNSIGNED, parent);
    array(out, tokens);
    // In-process LMCache passes an empty tuple here and not `None`.
    head(out, ARRAY, 0);
    Sha256::digest(out).into()
}

fn array<T: Token>(out: &mut Vec<u8>, tokens: &[T]) {
    head(out, ARRAY, tokens.len() as u64);
    for token in tokens {
        // The usual token skips the arithmetic with 128 bits.
        match token.as_u32() {
            Some(token) => head(out, UNSIGNED, token.into()),
            None => integer(out, token.value()),
        }
    }
}

fn integer(out: &mut Vec<u8>, value: i128) {
    // CBOR writes a negative number as -1 - n.
    let (major, magnitude) =
        if value < 0 { (NEGATIVE, !value as u128) } else { (UNSIGNED, value as u128) };
    // A head has an argument of 64 bits. Python's encoder writes larger numbers as bignums: tag 2,
    // or 3 for negative ones, and a byte string without leading zeros.
    match u64::try_from(magnitude) {
        Ok(small) => head(out, major, small),
        Err(_) => {
            let bytes = magnitude.to_be_bytes();
            let bytes = &bytes[magnitude.leading_zeros() as usize / 8..];
            head(out, TAG, 2 + u64::from(major));
            head(out, BYTES, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
    }
}

/// A major type with its argument, in the fewest bytes.
fn head(out: &mut Vec<u8>, major: u8, argument: u64) {
    // Canonical CBOR requires the shortest form. A longer one decodes to the same number but hashes
    // to another key.
    let major = major << 5;
    match argument {
        0..24 => out.push(major | argument as u8),
        24..0x100 => out.extend_from_slice(&[major | 24, argument as u8]),
        0x100..0x1_0000 => {
            out.push(major | 25);
            out.extend_from_slice(&(argument as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(major | 26);
            out.extend_from_slice(&(argument as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&argument.to_be_bytes());
        }
    }
}
