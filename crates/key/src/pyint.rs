use std::fmt;

use crate::inline_bytes::SmallBytes;
use crate::python_text;

/// The most bytes a whole number in a key may take; LMCache's own hashes take 8.
pub const INT_BYTES_MAX: usize = 512;

/// A whole number of any size up to [`INT_BYTES_MAX`], as Python has them: LMCache's in-process
/// chunk hashes are such.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PyInt {
    negative: bool,
    /// Big-endian, without leading zeros; empty for 0, which is never negative.
    magnitude: SmallBytes,
}

impl PyInt {
    /// The number of this sign and big-endian magnitude; `None` above [`INT_BYTES_MAX`].
    pub fn from_be_bytes(negative: bool, magnitude: &[u8]) -> Option<Self> {
        // One form for each number: equality and hashing compare the bytes.
        let zeros = magnitude.iter().take_while(|byte| **byte == 0).count();
        let magnitude = &magnitude[zeros..];
        (magnitude.len() <= INT_BYTES_MAX).then(|| PyInt {
            negative: negative && !magnitude.is_empty(),
            magnitude: SmallBytes::new(magnitude),
        })
    }

    /// Reads hexadecimal as Python's `int(text, 16)` does; `None` where that raises and above
    /// [`INT_BYTES_MAX`].
    pub fn from_hex(text: &str) -> Option<Self> {
        // A fixed buffer: a long name must not make this code allocate by its length.
        let mut digits = [0u8; 2 * INT_BYTES_MAX];
        let mut count = 0;
        let negative = python_text::int_digits(text, 16, |value| {
            // Leading zeros take no space, so that any number of them is accepted as in Python.
            if count != 0 || value != 0 {
                *digits.get_mut(count)? = value;
                count += 1;
            }
            Some(())
        })?;
        let mut magnitude = [0u8; INT_BYTES_MAX];
        let bytes = count.div_ceil(2);
        for (i, digit) in digits[..count].iter().enumerate() {
            // With an odd number of digits the first byte has only its lower half.
            let place = i + count % 2;
            magnitude[place / 2] |= if place % 2 == 0 { digit << 4 } else { *digit };
        }
        Self::from_be_bytes(negative, &magnitude[..bytes])
    }

    /// Reads a decimal number: an optional minus sign and ASCII digits; `None` otherwise and above
    /// [`INT_BYTES_MAX`].
    pub fn from_decimal(text: &str) -> Option<Self> {
        let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        // Schoolbook: multiply the number so far by ten, add a digit. The time is quadratic, which
        // the bound on the length below keeps small.
        let mut magnitude: Vec<u8> = Vec::with_capacity(digits.len() / 2);
        for c in digits.chars() {
            let mut carry = c.to_digit(10)?;
            for byte in magnitude.iter_mut().rev() {
                carry += u32::from(*byte) * 10;
                *byte = carry as u8;
                carry >>= 8;
            }
            if carry != 0 {
                magnitude.insert(0, carry as u8);
            }
            // Checked for each digit and not at the end: a text of megabytes ends here after the
            // limit.
            if magnitude.len() > INT_BYTES_MAX {
                return None;
            }
        }
        if digits.is_empty() { None } else { Self::from_be_bytes(negative, &magnitude) }
    }

    /// Whether the number is below 0.
    pub fn is_negative(&self) -> bool {
        self.negative
    }

    /// The magnitude, big-endian without leading zeros; empty for 0.
    pub fn magnitude(&self) -> &[u8] {
        self.magnitude.as_bytes()
    }

    /// The lowest 64 bits in two's complement: Python's `value & (2**64 - 1)`.
    pub fn low_u64(&self) -> u64 {
        // Bytes above the lowest eight are shifted out, as the mask does in Python.
        let low = self.magnitude().iter().fold(0u64, |low, byte| low << 8 | u64::from(*byte));
        if self.negative { low.wrapping_neg() } else { low }
    }

    /// Python's `abs(value) % modulus`; `None` for a modulus of 0.
    pub fn abs_mod(&self, modulus: u64) -> Option<u64> {
        let modulus = u128::from(modulus);
        // A remainder has 64 bits, so with one more byte it still fits into 128.
        let step = |rest: u128, byte: &u8| (rest << 8 | u128::from(*byte)).checked_rem(modulus);
        self.magnitude().iter().try_fold(0, step).filter(|_| modulus != 0).map(|rest| rest as u64)
    }

    /// Appends the number in lower-case hexadecimal, without a prefix.
    pub(crate) fn push_hex(&self, out: &mut String) {
        if self.negative {
            out.push('-');
        }
        match self.magnitude() {
            [] => out.push('0'),
            // The first byte without a leading zero, all others with two digits: Python's
            // `format(n, "x")`.
            [first, rest @ ..] => {
                python_text::push_int_hex(out, i64::from(*first), "", 1);
                python_text::push_hex(out, rest);
            }
        }
    }
}

/// In decimal.
impl fmt::Display for PyInt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.magnitude().to_vec();
        let mut digits = Vec::with_capacity(rest.len() * 5 / 2 + 1);
        // Long division by ten, the lowest digit first. A zero still needs one digit.
        while rest.iter().any(|byte| *byte != 0) || digits.is_empty() {
            let mut carry = 0u32;
            for byte in &mut rest {
                carry = carry << 8 | u32::from(*byte);
                *byte = (carry / 10) as u8;
                carry %= 10;
            }
            digits.push(b'0' + carry as u8);
        }
        digits.reverse();
        f.pad_integral(!self.negative, "", &digits.iter().map(|d| *d as char).collect::<String>())
    }
}

impl fmt::Debug for PyInt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<i64> for PyInt {
    fn from(value: i64) -> Self {
        PyInt { negative: value < 0, ..value.unsigned_abs().into() }
    }
}

impl From<u64> for PyInt {
    fn from(value: u64) -> Self {
        let bytes = value.to_be_bytes();
        PyInt {
            negative: false,
            magnitude: SmallBytes::new(&bytes[value.leading_zeros() as usize / 8..]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_size_reads_back_in_both_bases() {
        for text in [
            "0",
            "-1",
            "255",
            "-16",
            "18446744073709551615",
            "123456789012345678901234567890123456789012",
        ] {
            let value = PyInt::from_decimal(text).unwrap();
            assert_eq!(value.to_string(), text);
            let mut hex = String::new();
            value.push_hex(&mut hex);
            assert_eq!(PyInt::from_hex(&hex), Some(value));
        }
        assert_eq!(PyInt::from(-1i64).low_u64(), u64::MAX);
        assert_eq!(PyInt::from(i64::MIN).to_string(), i64::MIN.to_string());
        assert_eq!(PyInt::from(-7i64).abs_mod(3), Some(1));
        assert_eq!(PyInt::from(7u64).abs_mod(0), None);
        assert_eq!(PyInt::from(0u64).abs_mod(0), None);
        assert_eq!(PyInt::from_hex(&"f".repeat(2 * INT_BYTES_MAX + 1)), None);
    }
}
