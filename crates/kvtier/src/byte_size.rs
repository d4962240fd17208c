//! Parses and formats sizes such as `512MiB`.

/// Parses a size in bytes: a number with an optional unit, in any case. `K`, `M`, `G`, `T`, `P`, also
/// with a `B` (`GB`), are powers of 1000; with an `i` (`Gi`, `GiB`) powers of 1024. `None` for
/// anything else, and for a number that does not fit.
///
/// ```
/// assert_eq!(kvtier::byte_size::parse("512MiB"), Some(512 << 20));
/// assert_eq!(kvtier::byte_size::parse("100 GB"), Some(100_000_000_000));
/// assert_eq!(kvtier::byte_size::parse("a lot"), None);
/// ```
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    // As IEC 80000-13 has it: `kB` is 1000, `KiB` is 1024, and `K` alone is 1000.
    let (prefix, base) = unit.strip_suffix('i').map_or((unit, 1000), |prefix| (prefix, 1024));
    let power = match prefix {
        "" if base == 1000 => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    let factor = u64::pow(base, power);
    // Whole numbers stay exact: a float has only 53 bits.
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let exact = number.parse::<f64>().ok()? * factor as f64;
    (exact.is_finite() && exact >= 0.0 && exact < u64::MAX as f64).then_some(exact as u64)
}

/// Converts GiB to bytes; 0 for negative numbers and NaN.
pub fn from_gib(gib: f64) -> u64 {
    (gib * (1u64 << 30) as f64) as u64
}

/// Formats a size with a binary unit and at most two decimals.
pub fn format(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.2}");
    format!("{} {}", text.trim_end_matches('0').trim_end_matches('.'), units[unit])
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_read_as_written() {
        for (text, bytes) in [
            ("4096", 4096),
            ("256KiB", 256 << 10),
            ("1.5 GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            (" 7 b ", 7),
            ("8Gi", 8 << 30),
            ("2PiB", 2 << 50),
            ("3P", 3_000_000_000_000_000),
            ("1.5Mi", 3 << 19),
            ("4k", 4000),
        ] {
            assert_eq!(super::parse(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "x",
            "1XB",
            "-1",
            "1e3",
            "99999999999999999999",
            "1.2.3",
            "MiB",
            "1i",
            "1iB",
            "1EiB",
            "16384PiB",
            "1bb",
        ] {
            assert_eq!(super::parse(text), None, "{text}");
        }
        assert_eq!(super::format(256 << 10), "256 KiB");
        assert_eq!(super::format(1), "1 B");
    }
}
