//! CPython's `hash()` on 64-bit machines, for whole numbers and tuples of them (3.8 and later).

use super::Token;

// `sys.hash_info.modulus` on 64-bit machines.
const MODULUS: u128 = (1 << 61) - 1;
// The primes of xxHash, which CPython's `tuplehash` uses. Numbers 3 and 4 do not occur there.
const PRIME_1: u64 = 11_400_714_785_074_694_791;
const PRIME_2: u64 = 14_029_467_366_897_019_727;
const PRIME_5: u64 = 2_870_177_450_012_600_261;
// LMCache's extra keys, always empty. It is a constant, so no chunk has to compute it.
const EMPTY_TUPLE: u64 = finish(PRIME_5, 0);

/// `hash((parent, (token, ...), ()))`: LMCache's in-process chunk hash.
pub(super) fn hash<T: Token>(parent: i64, tokens: &[T]) -> i64 {
    let tokens = finish(
        tokens.iter().fold(PRIME_5, |acc, token| lane(acc, token.python_hash() as u64)),
        tokens.len(),
    );
    // CPython hashes the parent like any other number: a parent above the modulus contributes its
    // remainder.
    let parent = int_hash(parent.into()) as u64;
    let lanes = [parent, tokens, EMPTY_TUPLE];
    finish(lanes.iter().fold(PRIME_5, |acc, hash| lane(acc, *hash)), lanes.len()) as i64
}

/// `hash(number)`: the number modulo a Mersenne prime, keeping its sign; -1 is taken to report
/// errors.
pub(super) fn int_hash(number: i128) -> i64 {
    let rest = (number.unsigned_abs() % MODULUS) as i64;
    match if number < 0 { -rest } else { rest } {
        // C functions of CPython return -1 to report an exception, so no hash may have that value.
        -1 => -2,
        hash => hash,
    }
}

fn lane(acc: u64, hash: u64) -> u64 {
    // The C code computes with unsigned 64-bit numbers that wrap.
    acc.wrapping_add(hash.wrapping_mul(PRIME_2)).rotate_left(31).wrapping_mul(PRIME_1)
}

const fn finish(acc: u64, len: usize) -> u64 {
    match acc.wrapping_add(len as u64 ^ (PRIME_5 ^ 3_527_539)) {
        // -1 again: tuples have a substitute of their own.
        u64::MAX => 1_546_275_796,
        hash => hash,
    }
}
