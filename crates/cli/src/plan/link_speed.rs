//! Rates of links and devices, as people write and read them.

use crate::BadInput;

/// The bytes in a second that a text means: `10Gbit/s`, `3.2GB/s`, `800MB/s`, `1GiB/s`.
pub fn parse(flag: &str, text: &str) -> Result<f64, BadInput> {
    let wrong =
        || BadInput(format!("{flag} {text:?} is no rate; write for example 10Gbit/s or 3.2GB/s"));
    let plain = text.trim().strip_suffix("/s").unwrap_or(text.trim());
    let digits = plain.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = plain.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.trim();
    let (prefix, bytes) = match unit.strip_suffix("bit") {
        Some(prefix) => (prefix, 0.125),
        None => (unit.strip_suffix('B').ok_or_else(wrong)?, 1.0),
    };
    let scale = match prefix {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        _ => return Err(wrong()),
    };
    let rate = number * bytes * scale;
    if rate > 0.0 && rate.is_finite() { Ok(rate) } else { Err(wrong()) }
}

/// A rate in GB/s (10^9 bytes) with three digits that count.
pub fn gb(rate: f64) -> String {
    let gb = rate / 1e9;
    let digits = match gb {
        gb if gb >= 99.95 => 0,
        gb if gb >= 9.995 => 1,
        gb if gb >= 0.9995 => 2,
        _ => 3,
    };
    format!("{gb:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bits_or_bytes_with_decimal_or_binary_prefixes() {
        for (text, bytes) in [
            ("10Gbit/s", 1.25e9),
            ("1 Gbit", 1.25e8),
            ("3.2GB/s", 3.2e9),
            ("800MB", 8e8),
            ("1GiB/s", 1_073_741_824.0),
            ("64kbit/s", 8e3),
        ] {
            assert_eq!(parse("--link", text).unwrap(), bytes, "{text}");
        }
        for wrong in ["", "10", "Gbit/s", "0GB/s", "-1GB/s", "1Gb/s", "1XB/s", "1.2.3GB/s"] {
            assert!(parse("--link", wrong).is_err(), "{wrong}");
        }
        assert_eq!([gb(1.25e8), gb(5.3e9), gb(2.06e10)], ["0.125", "5.30", "20.6"]);
    }
}
